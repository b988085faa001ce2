"""`python -m gpumem_cli`: the gpumem command by way of Python itself.

Owns: nothing. Must not know: any command.
"""

from gpumem_cli.entry import main

main()
