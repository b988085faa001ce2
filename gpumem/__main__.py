"""`python -m gpumem`: the command, where its script is not on PATH.

Owns: nothing. Must not know: any command.
"""

from gpumem_cli.entry import main

if __name__ == "__main__":
    main()
