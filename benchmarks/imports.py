"""Start-up of the command line and of `import octavo`: python -m benchmarks.imports"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "bare interpreter": ["-c", "pass"],
    "import octavo": ["-c", "import octavo"],
    "octavo --help": ["-c", "from octavo.cli import main; raise SystemExit(main())", "--help"],
    "octavo plugin list": [
        "-c",
        "from octavo.cli import main; raise SystemExit(main())",
        "plugin",
        "list",
    ],
}


def seconds(arguments: list[str], rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    measured = {name: seconds(arguments) for name, arguments in COMMANDS.items()}
    bare = measured["bare interpreter"]
    print(json.dumps({name: round(value - bare, 3) for name, value in measured.items()}))


if __name__ == "__main__":
    main()
