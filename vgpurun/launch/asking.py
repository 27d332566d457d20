"""The questions to the engine that a launch begins with: it answers while the rest of the launch is imported."""

from typing import TYPE_CHECKING, TypeAlias

from vgpurun.engine.launches import LaunchEngine  # here: two threads that import hold each other up
from vgpurun.util.background import Background

if TYPE_CHECKING:
    from vgpurun.engine.client import Image
    from vgpurun.host.drivers import EngineFacts

Asked: TypeAlias = "tuple[LaunchEngine, Image | None, Background[EngineFacts]]"


def ask_engine(image: str) -> Background[Asked]:
    """Begin to ask for the engine, the image if it has it, and what it says of itself, which takes it a while."""

    def ask() -> Asked:
        engine = LaunchEngine.connect()
        facts = Background(engine.facts)
        return engine, engine.image(image), facts

    return Background(ask)
