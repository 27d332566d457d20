"""`python -m vgpurun` is the same as `vgpurun`."""

from vgpurun.cli import main

if __name__ == "__main__":
    main()
