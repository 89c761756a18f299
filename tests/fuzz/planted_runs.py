"""Planted bugs around kernels.

They concern statements that read their own results, threads and sessions, files of caches and plans, and memory that
tensors share.
"""

from __future__ import annotations

from .planting import Bug

_THREADS, _PLANS = "tests/runtime/test_threads.py", "tests/runtime/test_plan_file.py"
_EXECUTOR, _MEMORY = "tests/runtime/test_executor.py", "tests/runtime/test_memory.py"
_VERIFIERS, _POCL, _CACHE = (
    "tests/ir/test_verifiers.py",
    "tests/backends/test_pocl_cache.py",
    "tests/store/test_entries.py",
)
_STATEMENT_ORDER = "tests/ops/test_statement_order.py"

BUGS = (
    # ---- statements
    Bug("self-read", "an assignment may read what it writes", "ops.language.assignment:_check_order",
        "if target.name in read and target.row is None:", "if False:", _STATEMENT_ORDER),
    Bug("self-read", "an assignment may read what is written later", "ops.language.assignment:_check_order",
        "if tensor in evaluator.unwritten and evaluator.tensors[tensor].size:", "if False:", _STATEMENT_ORDER),
    Bug("self-read", "a part may be written after a reader", "ops.language.assignment:_check_order",
        "if target.name in evaluator.looked_at and target.row is None:", "if False:", _STATEMENT_ORDER),
    Bug("self-read", "no check finds what reads itself", "ir.verify.program:check_reads_and_writes_disjoint",
        "yield VerifyError", "not VerifyError", _VERIFIERS),
    Bug("self-read", "no check finds what is read too early", "ir.verify.program:check_tensors_written_before_read",
        "if n >= last and", "if n >= last + 99 and", _VERIFIERS),
    Bug("self-read", "elements may be written twice", "ops.language.write_checks:check_injective", "if lost:",
        "if False:", "tests/ops/test_language.py"),
    Bug("self-read", "elements may be missing", "ops.language.write_checks:check_coverage",
        "written.get(name, 0) == type_.size", "written.get(name, 0) <= type_.size", "tests/ops/test_language.py"),
    Bug("self-read", "bodies need not have their target's type", "ir.verify.program:check_values_typed",
        "(not positions and found is not wanted)", "False", _VERIFIERS),
    # ---- threads and sessions
    Bug("thread", "runs of one session do not wait for each other", "runtime.session:Session._exclusive",
        "with self._lock, self.device.current():", "with self.device.current():", _THREADS),
    Bug("thread", "inputs are fed outside of the lock", "runtime.session:Session.run_timed",
        "with self._exclusive(), self._range:", "with self._range:", _THREADS),
    Bug("thread", "steps are traced while others run", "runtime.session:Session.trace",
        "with self._exclusive():", "if True:", _THREADS),
    Bug("session", "outputs are views of memory that is used again", "runtime.session:Session._device_array",
        "own = Pointer(self._outputs.take(nbytes))", "own = self._tensor_pointer(tensor)", _EXECUTOR),
    Bug("session", "a block is handed out twice", "runtime.output_memory:OutputMemory.take",
        "self._free[nbytes].pop()", "self._free[nbytes][-1]", _EXECUTOR),
    Bug("session", "a block comes back while its array lives", "runtime.output_memory:OutputMemory.lend",
        "weakref.finalize(array, self._free[block.nbytes].append, block).atexit = False",
        "self._free[block.nbytes].append(block)", _EXECUTOR),
    Bug("session", "strided inputs are uploaded as if they were dense", "runtime.session:Session.is_dense",
        "all(a == b", "any(a == a and b == b"),
    Bug("session", "parts of a strided buffer overwrite each other", "runtime.session:Session._write",
        "self.device.download(images[buffer], Pointer(self._arena, self.plan.buffers[buffer].offset))", "pass",
        _EXECUTOR),
    Bug("session", "an offset counts bytes", "runtime.placement.placed_plan:tensor_address",
        "start.offset + storage.start(iteration) * plan.types[tensor].dtype.size",
        "start.offset + storage.start(iteration)"),
    Bug("session", "checks of indices are not read", "runtime.session:Session._check",
        "raise_all([error for error in found if error is not None])", "pass", "tests/runtime/test_debug.py"),
    # ---- memory that is shared over time
    Bug("alias", "an inner step does not extend a lifetime", "runtime.memory:Lifetime.extend",
        "max(self.last, step)", "max(self.first, self.last)"),
    Bug("alias", "a buffer's place is not rounded up", "runtime.memory:Placement.end",
        "self.offset + align_bytes(self.nbytes)", "self.offset + align_bytes(self.nbytes) // 2", _MEMORY),
    Bug("alias", "rivals are those that end before", "runtime.memory:_best_gap",
        "not other.overlaps(life)", "other.last >= life.first", _MEMORY),
    Bug("alias", "a plan may reach outside its buffers", "runtime.plan:_check_buffers",
        "extent_bytes(type_, storage) > place.nbytes", "False", _PLANS),
    Bug("alias", "a plan may reach outside its arena", "runtime.plan:_check_buffers",
        "place.offset + place.nbytes > plan.arena", "False", _PLANS),
    # ---- files
    Bug("plan file", "equal digests are enough for equal weights", "runtime.files.weights:array_key",
        'f"{array.dtype.str}{array.shape}".encode()', 'b""', _PLANS),
    Bug("plan file", "damaged files are read", "runtime.files.plan_file:_read_file",
        "if hashlib.sha256(content).hexdigest() != digest:", "if False:", _PLANS),
    Bug("plan file", "files outside of the folder are read", "runtime.files.plan_file:_path_within",
        '".." in Path(name).parts', "False", _PLANS),
    Bug("plan file", "the order of kernels is lost", "runtime.files.plan_file:_assemble",
        "for number, record in enumerate(document.kernels))\n    model",
        "for number, record in enumerate(document.kernels[::-1]))\n    model", _PLANS),
    Bug("plan file", "a damaged document is read", "runtime.files.plan_document:parse_document",
        'if data.pop("digest", None) != _digest(data):', 'if data.pop("digest", None) == "":', _PLANS),
    Bug("plan file", "plans of other versions are read", "runtime.files.plan_document:parse_document",
        '(version := data.pop("version", None)) != VERSION', '(version := data.pop("version", None)) == "x"', _PLANS),
    Bug("plan file", "a folder that is no plan is replaced", "runtime.files.plan_writer:_check_replaceable",
        'not (target / "plan.json").is_file()', "False", _PLANS),
    Bug("plan file", "a plan is written over the old one file by file", "runtime.files.plan_writer:write_folder",
        "draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f\".{target.name}-\"))",
        "draft = target\n        draft.mkdir(exist_ok=True)", _PLANS),
    Bug("cache", "a damaged entry is read", "store.entries:read_parts",
        "if any(digest_parts([name, parts[name]]) != expected", "if any(False", _CACHE),
    Bug("cache", "a damaged entry stays", "store.entries:EntryStore.read", "self.set_aside(kind, name, str(error))",
        "pass", _CACHE),
    Bug("cache", "entries are written in place", "store.entries:EntryStore.write",
        "os.replace(draft, folder / head.name)", "pass", _CACHE),
    Bug("cache", "an entry passes for another one", "store.entries:read_head",
        "own = head.name == name and head.kind in KINDS", "own = head.kind in KINDS", _CACHE),
    Bug("cache", "the newest entries are evicted", "store.eviction:trim",
        "key=lambda item: item.used", "key=lambda item: -item.used", _CACHE),
    Bug("cache", "a cut library passes for a whole one", "backends.opencl.pocl_cache:_is_damaged",
        "return bool(start + width * rows > size)", "return False", _POCL),
    Bug("cache", "cut bitcode passes for a whole one", "backends.opencl.pocl_cache:_is_damaged",
        "or _end_of_blocks(file, size) != size", "", _POCL),
    Bug("cache", "a file that is being written counts as damaged", "backends.opencl.pocl_cache:_files",
        "if status.st_mtime <= before:", "if True:", _POCL),
    Bug("cache", "lost kernels are not built anew", "backends.opencl.device:OpenCLDevice._program_with_kernels",
        "return self._program(source)", "return program", _POCL),
    Bug("cache", "counting stops at a file that is gone", "store.eviction:_usage",
        "except OSError:", "except ValueError:", _CACHE),
)  # fmt: skip
