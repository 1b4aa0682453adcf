"""The cache on disk: what it returns, what it refuses, and that damage and strangers do no harm."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from step_kernels import unique

import jitgrad as jg
from jitgrad.compiler.machine import cache as cache_module
from jitgrad.compiler.machine import native, stamp
from jitgrad.compiler.machine.cache import KernelCache, cache_key, compile_cached, kernel_cache, pack, unpack
from jitgrad.compiler.machine.early import have_early
from jitgrad.config import config

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def warn_anew() -> Iterator[None]:
    cache_module._warned = False
    yield
    cache_module._warned = False


def code(value: int = 1) -> tuple[str, str, native.NativeCode]:
    text, name = unique(f"define i64 @NAME() {{ ret i64 {value} }}")
    return cache_key(text), name, native.compile_module(text, [name])


def stored(directory: Path, value: int = 1) -> tuple[str, str, Path]:
    key, name, made = code(value)
    KernelCache(directory, MEGABYTE).put(key, made)
    return key, name, directory / f"{key}.kernel"


def call(loaded: native.NativeCode, name: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(loaded[name])())


def test_round_trip_and_statistics(tmp_path: Path) -> None:
    key, name, made = code(17)
    first = KernelCache(tmp_path / "new", MEGABYTE)
    assert first.get(key) is None
    first.put(key, made)
    assert first.get(key) is made
    assert (first.statistics.misses, first.statistics.stored, first.statistics.memory_hits) == (1, 1, 1)
    second = KernelCache(tmp_path / "new", MEGABYTE)
    loaded = second.get(key, [name])
    assert loaded is not None
    assert call(loaded, name) == 17
    assert second.statistics.disk_hits == 1
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other key", "lengthen"])
def test_damaged_files_are_misses_and_go(tmp_path: Path, damage: str) -> None:
    key, name, path = stored(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-20] ^= 1
    elif damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "empty":
        data.clear()
    elif damage == "lengthen":
        data += b"x"
    else:
        data = bytearray(stored(tmp_path, 2)[2].read_bytes())
    path.write_bytes(data)
    cache = KernelCache(tmp_path, MEGABYTE)
    assert cache.verify() == [key]
    assert cache.get(key, [name]) is None
    assert cache.statistics.damaged == 1
    assert not path.exists()


def test_file_without_the_function(tmp_path: Path) -> None:
    key, _, path = stored(tmp_path)
    assert KernelCache(tmp_path, MEGABYTE).get(key, ["absent"]) is None
    assert not path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_files_that_others_may_write_are_not_run(tmp_path: Path) -> None:
    key, _, path = stored(tmp_path)
    path.chmod(0o666)
    assert KernelCache(tmp_path, MEGABYTE).get(key) is None


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_open_directory_is_not_used_and_said_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="writable by you alone") as record:
        cache = KernelCache(tmp_path, MEGABYTE)
        KernelCache(tmp_path, MEGABYTE)
    assert len(record) == 1
    key, _, made = code()
    cache.put(key, made)
    assert cache.get(key) is made
    assert list(tmp_path.iterdir()) == []


def test_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert KernelCache(tmp_path / "file", MEGABYTE).directory is None


def test_directory_that_vanishes(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "gone", MEGABYTE)
    (tmp_path / "gone").rmdir()
    key, _, made = code()
    with pytest.warns(RuntimeWarning, match="could not keep"):
        cache.put(key, made)
    assert cache.get(key) is made
    assert cache.entries() == []


def test_oldest_files_go_first(tmp_path: Path) -> None:
    made = [code(value) for value in range(6)]
    size = len(pack(made[0][0], made[0][2]))
    cache = KernelCache(tmp_path, 4 * size + size // 2)
    for age, (key, _, kernel) in enumerate(made[:4]):
        cache.put(key, kernel)
        os.utime(tmp_path / f"{key}.kernel", (1000 + age, 1000 + age))
    cache.put(made[4][0], made[4][2])
    left = {entry.key for entry in cache.entries()}
    assert made[4][0] in left
    assert made[0][0] not in left
    assert sum(entry.nbytes for entry in cache.entries()) <= 4 * size


def test_clear(tmp_path: Path) -> None:
    for value in range(3):
        stored(tmp_path, value)
    cache = KernelCache(tmp_path, MEGABYTE)
    assert len(cache.entries()) == 3
    assert cache.clear() == 3
    assert cache.entries() == []


def test_leftovers_of_writers_are_swept(tmp_path: Path) -> None:
    leftover = tmp_path / "a.1.b.tmp"
    leftover.write_text("")
    os.utime(leftover, (1000, 1000))
    fresh = tmp_path / "c.1.d.tmp"
    fresh.write_text("")
    stored(tmp_path)
    assert not leftover.exists()
    assert fresh.exists()


def test_many_writers_of_one_key(tmp_path: Path) -> None:
    key, name, made = code(5)
    caches = [KernelCache(tmp_path, MEGABYTE) for _ in range(4)]

    def write(cache: KernelCache) -> None:
        for _ in range(25):
            cache.put(key, made)

    threads = [threading.Thread(target=write, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = KernelCache(tmp_path, MEGABYTE)
        assert not found.verify()
    for thread in threads:
        thread.join()
    loaded = KernelCache(tmp_path, MEGABYTE).get(key)
    assert loaded is not None
    assert call(loaded, name) == 5
    assert [path.suffix for path in tmp_path.iterdir()] == [".kernel"]


def test_second_process_compiles_nothing(tmp_path: Path) -> None:
    script = """
import sys
from jitgrad.compiler.machine.cache import compile_cached, kernel_cache
code = compile_cached("shared", lambda: "define i64 @shared_by_processes() { ret i64 4 }", ["shared_by_processes"])
print(kernel_cache().statistics.disk_hits, "jitgrad.compiler.machine.codegen" in sys.modules, "llvmlite" in sys.modules)
"""
    root = os.path.dirname(os.path.dirname(__file__))
    environment = os.environ | {"JITGRAD_CACHE_DIR": str(tmp_path), "JITGRAD_CACHE": "1", "PYTHONPATH": root}
    for expected in ("0 True True", "1 False False"):
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        assert done.stdout.decode().strip() == expected


def test_settings_choose_the_cache(tmp_path: Path) -> None:
    text, name = unique("define i64 @NAME() { ret i64 9 }")
    with config(cache=False):
        assert kernel_cache().directory is None
    with config(cache=True, cache_dir=tmp_path):
        assert kernel_cache().directory == str(tmp_path)
        assert call(compile_cached(text, lambda: text, [name]), name) == 9
        assert [entry.key for entry in kernel_cache().entries()] == [cache_key(text)]


def test_pack_and_unpack() -> None:
    key, name, made = code()
    data = pack(key, made)
    assert unpack(key, data) == ((name,), made.object_code)
    assert unpack("another", data) is None
    assert unpack(key, b"") is None


def test_no_warning_when_all_is_well(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored(tmp_path / "fine")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes on this system")
def test_a_pipe_in_place_of_a_file_is_passed_over(tmp_path: Path) -> None:
    from jitgrad.compiler.machine.cache import _contents

    os.mkfifo(tmp_path / "kernel.o")
    assert _contents(tmp_path / "kernel.o") is None


def test_all_that_makes_code_is_part_of_the_stamp() -> None:
    """Else a plan or a step made by another version of the compiler would be found again, or a call that traced to
    something else.
    """
    package = Path(jg.__file__).parent
    folders = {file.parent for file in package.rglob("*.py") if "profiler" not in file.parts}
    assert {str(folder.relative_to(package)) for folder in folders} <= set(map(os.path.normpath, stamp._FOLDERS))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package to look at in place of this one."""
    for name in ("__init__.py", "ops/__init__.py", "ops/add.py", "ops/native.so", "ops/__pycache__/add.pyc",
                 "ops/x", "a/only.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
        os.utime(tmp_path / name, ns=(10**18, 10**18 + 5))
    monkeypatch.setattr(stamp, "_PACKAGE", str(tmp_path))
    (tmp_path / "b").mkdir()
    monkeypatch.setattr(stamp, "_FOLDERS", ("", "ops", "a", "b"))
    yield tmp_path
    stamp.stamp.cache_clear()


def _stamps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stamp by a thread's look, by one's own, and by the interpreter's."""
    made = []
    for begin, code in ((stamp.begin_stamp, have_early()), (list, have_early()), (stamp.begin_stamp, None)):
        stamp.stamp.cache_clear()
        monkeypatch.setattr(stamp, "_early", lambda code=code: code)
        begin()
        made.append(stamp.stamp())
    return made


def _rewrite(path: Path) -> None:
    """As long as before, and in place: the folder does not change."""
    with path.open("r+") as file:
        file.write("2")


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewritten in place": lambda tree: _rewrite(tree / "ops" / "add.py"),
    "longer at the same time": lambda tree: ((tree / "__init__.py").write_text("12"),
                                             os.utime(tree / "__init__.py", ns=(10**18, 10**18 + 5))),
    "a nanosecond later": lambda tree: os.utime(tree / "ops" / "add.py", ns=(10**18, 10**18 + 6)),
    "added": lambda tree: (tree / "ops" / "new.py").write_text("1"),
    "removed": lambda tree: (tree / "ops" / "add.py").unlink(),
    "renamed": lambda tree: (tree / "ops" / "add.py").rename(tree / "ops" / "abb.py"),
    "moved to the next folder": lambda tree: (tree / "a" / "only.py").rename(tree / "b" / "only.py"),
    "named by its suffix": lambda tree: (tree / "ops" / ".py").write_text("1"),
    "of machine code": lambda tree: _rewrite(tree / "ops" / "native.so"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_whoever_looks_finds_each_change_of_a_source(
    change: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, *others = _stamps(monkeypatch)
    assert others == [before, before]
    CHANGES[change](tree)
    after, *others = _stamps(monkeypatch)
    assert others == [after, after] and after != before


def test_what_is_no_source_does_not_count(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _stamps(monkeypatch)
    _rewrite(tree / "ops" / "x")
    _rewrite(tree / "ops" / "__pycache__" / "add.pyc")
    assert _stamps(monkeypatch) == before


def test_a_look_that_fails_is_the_interpreters(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _stamps(monkeypatch)
    with monkeypatch.context() as context:
        context.setattr(stamp, "_ROOM", 40)
        assert _stamps(monkeypatch) == before
    (tree / "ops" / f"{'long' * 20}.py").write_text("1")
    after, *others = _stamps(monkeypatch)
    assert others == [after, after] and after != before[0]


def test_a_link_to_nothing_counts_as_no_file(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor's lock, for one."""
    before = _stamps(monkeypatch)
    (tree / "ops" / ".#add.py").symlink_to("nobody@nowhere")
    (tree / "ops" / "round.py").symlink_to("round.py")
    assert _stamps(monkeypatch) == before


@pytest.mark.parametrize("is_last_first", [False, True])
def test_the_order_of_a_listing_does_not_count(
    is_last_first: bool, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter's is turned here; machine code has that of the system."""
    before, listing = _stamps(monkeypatch), os.scandir

    def listed(path: str) -> list[os.DirEntry[str]]:
        return sorted(listing(path), key=lambda entry: entry.name, reverse=is_last_first)

    monkeypatch.setattr(os, "scandir", listed)
    after = _stamps(monkeypatch)
    assert after == before == [before[0]] * 3


def test_a_look_that_fails_lets_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folders: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(stamp, "_looks", fail)
    look = stamp._Look()
    with pytest.raises(MemoryError):
        look.do([])
    assert not look.is_going_on.locked()


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_does_what_it_was_given_once_others_may_go_on(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[bool] = []

    def looks(folders: object) -> bytes:
        assert stamp.do_after_look(lambda: done.append(look.is_going_on.locked())) and not done
        if fails:
            raise MemoryError
        return b"seen"

    monkeypatch.setattr(stamp, "_looks", looks)
    look = stamp._Look()
    monkeypatch.setattr(stamp, "_begun", [look])
    with pytest.raises(MemoryError) if fails else nullcontext():
        look.do([])
    assert done == [False]
    assert not stamp.do_after_look(lambda: done.append(True)) and done == [False]


def test_nothing_is_done_after_a_look_that_nobody_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamp, "_begun", [])
    assert not stamp.do_after_look(lambda: None)


def test_a_look_ends_with_the_first_call_that_began_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def fails(x: object) -> None:
        begun.extend(stamp._begun)
        raise ValueError("no")

    before = _stamps(monkeypatch)[0]
    stamp.stamp.cache_clear()
    monkeypatch.setattr(stamp, "_early", have_early)
    with config(num_threads=2), pytest.raises(ValueError, match="no"):
        jg.compile(fails)(np.ones(3))
    assert len(begun) == 1
    _rewrite(tree / "ops" / "add.py")
    assert stamp.stamp() != before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_wait_for_its_parents_look(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp.stamp.cache_clear()
    monkeypatch.setattr(stamp._Look, "do", lambda look, folders: None)  # it never ends
    monkeypatch.setattr(stamp, "_early", have_early)
    stamp.begin_stamp()
    assert len(stamp._begun) == 1
    child = os.fork()
    if not child:
        os._exit(0 if stamp.stamp() else 1)
    stamp._begun.clear()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
