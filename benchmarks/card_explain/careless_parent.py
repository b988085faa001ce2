"""Starts a child that holds 1 GiB of device memory and says its pid; killed itself, it leaves the child behind."""

import multiprocessing
import time


def hold(started) -> None:  # type: ignore[no-untyped-def]
    import torch

    held = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    started.set()
    time.sleep(60)
    del held


def main() -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    child = context.Process(target=hold, args=(started,))
    child.start()
    started.wait()
    print(child.pid, flush=True)
    child.join()


if __name__ == "__main__":
    main()
