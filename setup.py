"""The build's one step that pyproject.toml cannot express: ``configs/`` is installed as ``trainers/configs/``.

``examples/agents.py`` likewise.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithConfigs(build_py):
    """Copies the shipped configurations into the wheel; an editable installation reads them where they are."""

    def run(self) -> None:
        """Builds the packages, then adds the configurations."""
        super().run()
        if not self.editable_mode:
            for source, target in self._configs().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_source_files(self) -> list[str]:
        """Returns the files that a source distribution needs."""
        return [*super().get_source_files(), *self._configs()]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Returns the files that the build writes."""
        added = [] if self.editable_mode else list(self._configs().values())
        return [*super().get_outputs(include_bytecode), *added]

    def _configs(self) -> dict[str, str]:
        """Returns each configuration with the file that it is copied to."""
        target = Path(self.build_lib or "build/lib") / "trainers"
        files = (file for file in sorted(Path("configs").rglob("*")) if file.is_file())
        return {str(file): str(target / file) for file in (*files, Path("examples/agents.py"))}


setup(cmdclass={"build_py": WithConfigs})
