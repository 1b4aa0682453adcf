"""The stubs between the kernel ABI and BLAS, as LLVM IR text: which cell, which addresses, which call. No
planning.

    jitgrad_matmul_f32, jitgrad_matmul_f64    a range of cells of a product; the block is `BLOCK`, then, per
                                              batch axis, its extent and the strides of A, B and C
    jitgrad_blas_enter, jitgrad_blas_leave    OpenBLAS on one thread, and back; block: its getter and setter
    jitgrad_blas_reset(setter)                nobody is between enter and leave: for a forked child
"""

from __future__ import annotations

from jitgrad.compiler.products.product_code import GUARD_STUBS, MATMUL_STUBS, RESET_STUB
from jitgrad.compiler.products.registers import KERNEL, SMALLER, module_ir, word_ir
from jitgrad.records import NamedTuple

BLOCK = (
    "gemm", "gemv", "m", "n", "k", "rows", "columns", "accumulate", "nbatch",
    "a_slot", "a_offset", "a_stride", "a_transposed",
    "b_slot", "b_offset", "b_stride", "b_transposed",
    "c_slot", "c_offset", "c_stride", "c_transposed",
    "scratch_slot", "scratch_bytes", "depth",
)  # fmt: skip
"""The words of a product's block, in order; strides and offsets in elements. The last three are for products of our
own: memory for each worker, and how much of the sum is one part of it.
"""


class Scalar(NamedTuple):
    """A number type of LLVM, the stub for it, and its bytes."""

    type: str
    stub: str
    size: int


_KINDS = {
    "float32": Scalar("float", MATMUL_STUBS["float32"], 4),
    "float64": Scalar("double", MATMUL_STUBS["float64"], 8),
}


def matmul_ir(dtype: str) -> str:
    """The module of the products of a dtype."""
    kind = _KINDS[dtype]
    return module_ir(cells_ir(kind), _cell(kind), _gemm(kind), _gemv(kind), _zero())


def guard_ir() -> str:
    """The module of what stands before and after products."""
    return module_ir(_guard())


def words_ir(*names: str) -> str:
    """Words of the block of a product."""
    return "\n".join(word_ir(name, BLOCK) for name in names)


def cells_ir(kind: Scalar) -> str:
    """The loop over cells: cell -> batch index, tile row, tile column; the batch index -> three offsets, and what is
    left of it is the part of the sum.
    """
    return f"""
define void @{kind.stub}({KERNEL}) #0 {{
entry:
{words_ir("m", "n", "rows", "columns", "nbatch", "a_offset", "b_offset", "c_offset")}
  %m_up = add i64 %m, %rows
  %m_less = sub i64 %m_up, 1
  %down = udiv i64 %m_less, %rows
  %n_up = add i64 %n, %columns
  %n_less = sub i64 %n_up, 1
  %across = udiv i64 %n_less, %columns
  %axes = getelementptr i64, ptr %block, i64 {len(BLOCK)}
  br label %cell
cell:
  %i = phi i64 [ %lo, %entry ], [ %i1, %call ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %split, label %done
{_split()}
call:
  call void @cell_{kind.type}(ptr %table, ptr %block, i64 %row, i64 %column, i64 %a, i64 %b, i64 %c,
      i64 %rest, i64 %worker)
  %i1 = add i64 %i, 1
  br label %cell
done:
  ret void
}}"""


def _split() -> str:
    """A cell's row, column and batch index, and from that the offsets of the operands, axis by axis from the last."""
    return """split:
  %column = urem i64 %i, %across
  %i_row = udiv i64 %i, %across
  %row = urem i64 %i_row, %down
  %index = udiv i64 %i_row, %down
  br label %axis
axis:
  %j = phi i64 [ %nbatch, %split ], [ %j1, %next ]
  %rest = phi i64 [ %index, %split ], [ %rest1, %next ]
  %a = phi i64 [ %a_offset, %split ], [ %a1, %next ]
  %b = phi i64 [ %b_offset, %split ], [ %b1, %next ]
  %c = phi i64 [ %c_offset, %split ], [ %c1, %next ]
  %left = icmp sgt i64 %j, 0
  br i1 %left, label %next, label %call
next:
  %j1 = sub i64 %j, 1
  %axis_at = getelementptr [4 x i64], ptr %axes, i64 %j1
  %extent = load i64, ptr %axis_at
  %sa_at = getelementptr i64, ptr %axis_at, i64 1
  %sa = load i64, ptr %sa_at
  %sb_at = getelementptr i64, ptr %axis_at, i64 2
  %sb = load i64, ptr %sb_at
  %sc_at = getelementptr i64, ptr %axis_at, i64 3
  %sc = load i64, ptr %sc_at
  %digit = urem i64 %rest, %extent
  %rest1 = udiv i64 %rest, %extent
  %da = mul i64 %digit, %sa
  %db = mul i64 %digit, %sb
  %dc = mul i64 %digit, %sc
  %a1 = add i64 %a, %da
  %b1 = add i64 %b, %db
  %c1 = add i64 %c, %dc
  br label %axis"""


def operand_ir(name: str, kind: Scalar) -> str:
    """The address of the tile's part of an operand, from its offset and the tile's first row and column."""
    return f"""{words_ir(f"{name}_slot", f"{name}_stride", f"{name}_transposed")}
  %{name}_entry = getelementptr ptr, ptr %table, i64 %{name}_slot
  %{name}_base = load ptr, ptr %{name}_entry
  %{name}_t = icmp ne i64 %{name}_transposed, 0
  %{name}_far = mul i64 %{name}_first, %{name}_stride
  %{name}_near = select i1 %{name}_across, i64 %{name}_first, i64 %{name}_far
  %{name}_total = add i64 %{name}, %{name}_near
  %{name}_ptr = getelementptr {kind.type}, ptr %{name}_base, i64 %{name}_total"""


def cell_start_ir(kind: Scalar) -> str:
    """The head of the function of a cell: the sizes of its tile, and the addresses of the tile's parts."""
    a = operand_ir("a", kind).replace("%a_far =", "%a_across = icmp ne i64 %a_transposed, 0\n  %a_far =")
    b = operand_ir("b", kind).replace("%b_far =", "%b_across = icmp eq i64 %b_transposed, 0\n  %b_far =")
    c = operand_ir("c", kind).replace("%c_far =", "%c_across = or i1 false, false\n  %c_far =")
    return f"""
define internal void @cell_{kind.type}(ptr %table, ptr %block, i64 %row, i64 %column, i64 %a, i64 %b,
      i64 %c0, i64 %part, i64 %worker) #0 {{
entry:
{words_ir("m", "n", "k", "rows", "columns", "accumulate")}
  %a_first = mul i64 %row, %rows
  %b_first = mul i64 %column, %columns
  %c_first = add i64 %a_first, 0
  %c = add i64 %c0, %b_first
  %m_left = sub i64 %m, %a_first
  %n_left = sub i64 %n, %b_first
  %m_tile = call i64 @llvm.smin.i64(i64 %m_left, i64 %rows)
  %n_tile = call i64 @llvm.smin.i64(i64 %n_left, i64 %columns)
{a}
{b}
{c}"""


def scratch_ir() -> str:
    """The memory of the worker, `%scratch`."""
    return f"""{words_ir("scratch_slot", "scratch_bytes")}
  %scratch_entry = getelementptr ptr, ptr %table, i64 %scratch_slot
  %scratches = load ptr, ptr %scratch_entry
  %scratch_offset = mul i64 %worker, %scratch_bytes
  %scratch = getelementptr i8, ptr %scratches, i64 %scratch_offset"""


def _cell(kind: Scalar) -> str:
    """One tile of one product: its addresses, then zeros, a gemv or a gemm."""
    return f"""{cell_start_ir(kind)}
  %m_one = icmp eq i64 %m, 1
  %n_one = icmp eq i64 %n, 1
  %vector = or i1 %m_one, %n_one
  %k_zero = icmp eq i64 %k, 0
  %fresh = icmp eq i64 %accumulate, 0
  %vector_fresh = and i1 %vector, %fresh
  %clear = or i1 %k_zero, %vector_fresh
  br i1 %clear, label %zero, label %choose
zero:
  %n_bytes = mul i64 %n_tile, {kind.size}
  %c_bytes = mul i64 %c_stride, {kind.size}
  call void @zero_rows(ptr %c_ptr, i64 %m_tile, i64 %n_bytes, i64 %c_bytes)
  br i1 %k_zero, label %done, label %choose
choose:
  br i1 %vector, label %gemv, label %gemm
gemv:
  %at = xor i1 %a_t, true
  %matrix = select i1 %n_one, ptr %a_ptr, ptr %b_ptr
  %matrix_stride = select i1 %n_one, i64 %a_stride, i64 %b_stride
  %matrix_t = select i1 %n_one, i1 %at, i1 %b_t
  %x = select i1 %n_one, ptr %b_ptr, ptr %a_ptr
  %x_b = select i1 %b_t, i64 1, i64 %b_stride
  %x_a = select i1 %a_t, i64 %a_stride, i64 1
  %x_stride = select i1 %n_one, i64 %x_b, i64 %x_a
  %y_length = select i1 %n_one, i64 %m_tile, i64 %n_tile
  %y_stride = select i1 %n_one, i64 %c_stride, i64 1
  %height = select i1 %matrix_t, i64 %k, i64 %y_length
  %width = select i1 %matrix_t, i64 %y_length, i64 %k
  call void @gemv_{kind.type}(ptr %block, i1 %matrix_t, i64 %height, i64 %width, ptr %matrix,
      i64 %matrix_stride, ptr %x, i64 %x_stride, ptr %c_ptr, i64 %y_stride)
  ret void
gemm:
  call void @gemm_{kind.type}(ptr %block, i1 %b_t, i1 %a_t, i64 %n_tile, i64 %m_tile, i64 %k, ptr %b_ptr,
      i64 %b_stride, ptr %a_ptr, i64 %a_stride, i1 %fresh, ptr %c_ptr, i64 %c_stride)
  ret void
done:
  ret void
}}"""


def _by_reference(types: dict[str, str]) -> str:
    """Stack cells for the arguments that Fortran takes by reference, filled: `_name` holds the value of
    `name`.
    """
    lines = []
    for name, kind in types.items():
        if kind == "i8":
            lines.append(f"  %{name}_8 = select i1 %{name}, i8 {ord('T')}, i8 {ord('N')}")
        value = f"%{name}_8" if kind == "i8" else f"%{name}"
        lines += [f"  %_{name} = alloca {kind}", f"  store {kind} {value}, ptr %_{name}"]
    return "\n".join(lines)


def _gemm(kind: Scalar) -> str:
    cells = dict.fromkeys(("ta", "tb"), "i8") | dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), "i64")
    cells |= {"alpha": kind.type, "beta": kind.type}
    return f"""
define internal void @gemm_{kind.type}(ptr %block, i1 %ta, i1 %tb, i64 %m, i64 %n, i64 %k, ptr %a,
      i64 %lda, ptr %b, i64 %ldb, i1 %fresh, ptr %c, i64 %ldc) #0 {{
{words_ir("gemm")}
  %alpha = select i1 true, {kind.type} 1.0, {kind.type} 1.0
  %beta = select i1 %fresh, {kind.type} 0.0, {kind.type} 1.0
{_by_reference(cells)}
  %function = inttoptr i64 %gemm to ptr
  call void %function(ptr %_ta, ptr %_tb, ptr %_m, ptr %_n, ptr %_k, ptr %_alpha, ptr %a, ptr %_lda,
      ptr %b, ptr %_ldb, ptr %_beta, ptr %c, ptr %_ldc)
  ret void
}}"""


def _gemv(kind: Scalar) -> str:
    cells = {"t": "i8"} | dict.fromkeys(("m", "n", "lda", "incx", "incy"), "i64") | {"one": kind.type}
    return f"""
define internal void @gemv_{kind.type}(ptr %block, i1 %t, i64 %m, i64 %n, ptr %a, i64 %lda, ptr %x,
      i64 %incx, ptr %y, i64 %incy) #0 {{
{words_ir("gemv")}
  %one = select i1 true, {kind.type} 1.0, {kind.type} 1.0
{_by_reference(cells)}
  %function = inttoptr i64 %gemv to ptr
  call void %function(ptr %_t, ptr %_m, ptr %_n, ptr %_one, ptr %a, ptr %_lda, ptr %x, ptr %_incx,
      ptr %_one, ptr %y, ptr %_incy)
  ret void
}}"""


def _zero() -> str:
    return f"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1) #0
{SMALLER}

define internal void @zero_rows(ptr %start, i64 %rows, i64 %bytes, i64 %stride) #0 {{
entry:
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i1, %row ]
  %offset = mul i64 %i, %stride
  %at = getelementptr i8, ptr %start, i64 %offset
  call void @llvm.memset.p0.i64(ptr %at, i8 0, i64 %bytes, i1 false)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %rows
  br i1 %more, label %row, label %done
done:
  ret void
}}"""


def _guard() -> str:
    """How many calls are between enter and leave is counted under a spin lock; the first saves, the last
    restores.
    """
    return _count_up() + _count_down()


def _count_up() -> str:
    """The lock, and what runs before products."""
    return f"""
@lock = internal global i32 0
@depth = internal global i32 0
@saved = internal global i32 0

define internal void @acquire() #0 {{
entry:
  br label %try
try:
  %pair = cmpxchg ptr @lock, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %got, label %done, label %try
done:
  ret void
}}

define void @{GUARD_STUBS[0]}({KERNEL}) #0 {{
entry:
  call void @acquire()
  %depth = load i32, ptr @depth
  %deeper = add i32 %depth, 1
  store i32 %deeper, ptr @depth
  %first = icmp eq i32 %depth, 0
  br i1 %first, label %save, label %done
save:
  %get = load ptr, ptr %block
  %threads = call i32 %get()
  store i32 %threads, ptr @saved
  %set_at = getelementptr i64, ptr %block, i64 1
  %set = load ptr, ptr %set_at
  call void %set(i32 1)
  br label %done
done:
  store atomic i32 0, ptr @lock release, align 4
  ret void
}}

"""


def _count_down() -> str:
    """What runs behind products, and in a child that was forked between."""
    return f"""\
define void @{GUARD_STUBS[1]}({KERNEL}) #0 {{
entry:
  call void @acquire()
  %depth = load i32, ptr @depth
  %less = sub i32 %depth, 1
  store i32 %less, ptr @depth
  %last = icmp eq i32 %less, 0
  br i1 %last, label %restore, label %done
restore:
  %threads = load i32, ptr @saved
  %set_at = getelementptr i64, ptr %block, i64 1
  %set = load ptr, ptr %set_at
  call void %set(i32 %threads)
  br label %done
done:
  store atomic i32 0, ptr @lock release, align 4
  ret void
}}

define void @{RESET_STUB}(ptr %set) #0 {{
entry:
  %depth = load i32, ptr @depth
  %inside = icmp ne i32 %depth, 0
  br i1 %inside, label %restore, label %done
restore:
  %threads = load i32, ptr @saved
  call void %set(i32 %threads)
  store i32 0, ptr @depth
  br label %done
done:
  store atomic i32 0, ptr @lock release, align 4
  ret void
}}"""
