"""The program `vgpurun`, which is also `python -m vgpurun`."""

import signal


def main() -> None:
    """Run the command line. Until it is loaded, Ctrl-C ends the process at once, without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from vgpurun.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
