"""The client runs without pyarrow and numpy, and says which extra has them."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from mq.extras import install


def run(script: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script)]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return made.stdout.strip()


def test_clients_load_neither_pyarrow_nor_numpy() -> None:
    found = run("""
        import sys
        import mq.client, mq.client.aio, mq.client.lowlevel
        for face in (mq.client, mq.client.aio):
            for name in face.__all__:
                getattr(face, name)
        print(sorted({"numpy", "pyarrow", "pyspark"} & sys.modules.keys()))
    """)
    assert found == "[]"


def test_columns_load_no_pyspark_and_no_pandas() -> None:
    found = run("""
        import sys
        import mq.client.arrow.columns, mq.client.arrow.cutting
        print(sorted({"pandas", "pyspark"} & sys.modules.keys()))
    """)
    assert found == "[]"


def test_without_pyarrow_the_extra_is_named() -> None:
    found = run("""
        import sys
        sys.modules["pyarrow"] = None  # as if it were not installed
        try:
            import mq.client.arrow
        except ModuleNotFoundError as error:
            print(error.name, error)
    """)
    assert found == (
        "pyarrow Arrow needs pyarrow, which is not installed. The extra arrow brings it: "
        + install("arrow")
    )
