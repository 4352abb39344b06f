"""`doctor`: checks of the machine and the installation."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from importlib.util import find_spec

from hloscope.base.calls import front_door
from hloscope.base.errors import HloscopeError, Option, join, on_one_line, say
from hloscope.base.store import ADDRESS, RemoteStore, Store, hide_password, open_default_store
from hloscope.base.units import format_bytes, format_capacity, pluralize
from hloscope.compile import client, jax_support, slots, step
from hloscope.compile.environment import find_attached_platform, import_jax
from hloscope.compile.stages import find_stage_check
from hloscope.report.checkups import Checkup, Checkups
from hloscope.tpu.chips import DEFAULT_CHIP
from hloscope.tpu.slices import find_smallest_slice
from hloscope.version import __version__


@front_door
def doctor() -> Checkups:
    """Checks versions, the private parts of JAX in use, the TPU compiler, the cache and the workers.

    It compiles a small program.
    """
    versions = (
        f"hloscope {__version__}",
        f"Python {platform.python_version()}",
        *map(_describe_version, ("jax", "jaxlib")),
    )
    return Checkups(
        (
            Checkup(name="versions", found=", ".join(versions)),
            Checkup(name="HLO text", found="read without JAX", works=True),
            *_check_jax(),
            Checkup(name="verify runs on", found=find_attached_platform() or "simulated CPU devices"),
            *_check_caches(),
        )
    )


def _describe_version(package: str) -> str:
    found = jax_support.find_package_version(package)
    return f"no {package}" if found is None else f"{package} {found}"


def _check_jax() -> tuple[Checkup, ...]:
    if find_spec("jax") is None:
        how = 'pip install "jax[tpu]" on x86-64 Linux, pip install jax elsewhere'
        return (Checkup(name="compiling functions", found="JAX is not installed", works=False, fix=how),)
    try:
        import_jax()
    except HloscopeError as error:
        return (Checkup(name="compiling functions", found=f"{error.what}: {error.why}", works=False, fix=error.fix),)
    found = []
    for purpose, parts in jax_support.PRIVATE_PARTS.items():
        missing = jax_support.find_missing_parts(purpose)
        words = f"JAX has everything needed ({pluralize(len(parts), 'private part')})"
        if missing:
            words = f"JAX lacks {', '.join(part.replace(':', '.') for part in missing)}"
        fix = jax_support.INSTALL_COMMAND if missing else None
        found.append(Checkup(name=purpose, found=words, works=not missing, fix=fix))
    tested = f"hloscope is tested with JAX {' and '.join(jax_support.TESTED_VERSIONS)}"
    known = jax_support.describe_untested(metadata.version("jax")) or tested
    return (Checkup(name="tested versions", found=known), *found, _check_compiler(), _check_workers())


def _check_compiler() -> Checkup:
    from hloscope.base.errors import describe_exception

    name, build = "TPU compiler", jax_support.find_libtpu_build()
    if build is None:
        chosen = os.environ.get("TPU_LIBRARY_PATH")
        where = (
            "here"
            if chosen is None or str(jax_support.find_libtpu_file()) == chosen
            else f"at TPU_LIBRARY_PATH={chosen}"
        )
        why = say(
            f"there is no libtpu {where}: only HLO text can be read, and functions compiled for ",
            Option("slice", "cpu:N"),
        )
        fix = (
            'pip install "jax[tpu]" on x86-64 Linux'
            if where == "here"
            else "unset it, or set it to the path of libtpu.so"
        )
        return Checkup(name=name, found=why, works=False, fix=fix)
    begun, tried = time.monotonic(), find_smallest_slice(4).name
    try:
        client.Question(step.warm_up_compiler, tried, doing=f"compiling an empty program for {tried}").answer()
    except HloscopeError as error:
        words = join("; ", (on_one_line(part) for part in (error.what, error.why) if part))
        return Checkup(name=name, found=say(f"libtpu {build}: ", words), works=False, fix=error.fix)
    except Exception as error:  # any error of a libtpu that does not match
        return Checkup(
            name=name,
            found=f"libtpu {build}: {describe_exception(error)}",
            works=False,
            fix=jax_support.INSTALL_COMMAND,
        )
    seconds = time.monotonic() - begun
    path = os.environ.get("TPU_LIBRARY_PATH") or jax_support.find_libtpu_file()
    found = f"libtpu {build} ({path}) compiled for {DEFAULT_CHIP.name} in {seconds:.1f} s"
    return Checkup(name=name, found=f"{found}; {_describe_stages()}", works=True)


def _describe_stages() -> str:
    known = find_stage_check(jax_support.find_own_libtpu_version())
    if known is None:
        return "its scheduled stage was never compared with full compiles: every program is compiled in full"
    return f"its scheduled stage was compared with {pluralize(known.pairs, 'full compile')} on {known.date}"


def _check_workers() -> Checkup:
    here, room = client.count_useful_workers(), slots.count_slots()
    chosen = "HLOSCOPE_MAX_WORKERS" if os.environ.get("HLOSCOPE_MAX_WORKERS") else "memory"
    words = (
        f"{here} at once here, limited by cores and free memory; {room} for all processes of this user, limited by "
        f"{chosen}"
    )
    return Checkup(name="workers", found=words)


def _check_caches() -> tuple[Checkup, ...]:
    try:
        store = open_default_store()
    except HloscopeError as error:
        return (Checkup(name="cache", found=error.what, works=False, fix=error.fix),)
    if store is None:
        off = os.environ.get("HLOSCOPE_CACHE") == "0"
        return (Checkup(name="cache", found="off, by HLOSCOPE_CACHE=0" if off else "off: there is no home folder"),)
    own = _check_own_cache(store)
    return (own,) if store.remote is None else (own, _check_shared_cache(store.remote))


def _check_shared_cache(remote: RemoteStore) -> Checkup:
    why = remote.reached()
    believed = (
        "entries must be signed with the key" if remote.key is not None else "everyone who can write there is trusted"
    )
    words = f"{hide_password(remote.url)}, {'read and written' if remote.writes else 'read only'}; {believed}"
    fix = None if why is None else f"fix it, or unset {ADDRESS}: everything works without it"
    return Checkup(name="shared cache", found=words if why is None else f"{words}; {why}", works=why is None, fix=fix)


def _check_own_cache(store: Store) -> Checkup:
    entries, size = store.contents()
    works = store.put("doctor", "checkup", b"")
    held = f"{store.folder}: {entries:,} entries, {format_bytes(size)} of {format_capacity(store.most_bytes)}"
    fix = None if works else "choose another folder with HLOSCOPE_CACHE_DIR, or turn the cache off: HLOSCOPE_CACHE=0"
    return Checkup(name="cache", found=held if works else f"{held}, not writable", works=works, fix=fix)
