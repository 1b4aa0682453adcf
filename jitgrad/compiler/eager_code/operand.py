"""What NumPy, tapes and rules know of an operand of an eager operation, as LLVM IR text; nothing is computed here.

    operand(x)    what NumPy is given; null for what is left to Python
    key(x)        `operand_key` of recorder.py, for tensors, floats and integers; null for what the recorder looks at
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.layout import DTYPE_SHIFT, KEY_FACTORS, KEY_RANK, KEY_WORDS, KEYS, Slots
from jitgrad.compiler.machine.ir_text import DESCR, DIMENSIONS, RANK, TYPE, load, load_word


def operand_ir(slots: Slots) -> str:
    """The functions."""
    return "\n".join((_OPERAND, _key(slots), _seen_key()))


# What NumPy is given for an operand; null for one that is left to Python.
_OPERAND = f"""
define internal ptr @operand(ptr %x) #0 {{
entry:
{load("type", "%x", TYPE)}
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %other
tensor:
  %plain = call ptr @plain(ptr %x)
  ret ptr %plain
other:
  %is_float = icmp eq ptr %type, @jitgrad_type_float
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %is_array = icmp eq ptr %type, @jitgrad_type_ndarray
  %is_number = or i1 %is_float, %is_int
  %is_known = or i1 %is_number, %is_array
  %found = select i1 %is_known, ptr %x, ptr null
  ret ptr %found
}}
"""


def _key(slots: Slots) -> str:
    """A tensor that has no key yet gets one that is among those seen."""
    return f"""
define internal ptr @key(ptr %x) #0 {{
entry:
{load("type", "%x", TYPE)}
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %other
tensor:
{load("key", "%x", slots.key)}
  %missing = icmp eq ptr %key, null
  br i1 %missing, label %search, label %done
search:
  %seen = call ptr @seen_key(ptr %x)
  %new = icmp eq ptr %seen, null
  br i1 %new, label %done, label %keep
keep:
  call void @hold(ptr %seen)
  store ptr %seen, ptr %key_at
  br label %done
done:
  %found_key = phi ptr [ %key, %tensor ], [ null, %search ], [ %seen, %keep ]
  ret ptr %found_key
other:
  %is_float = icmp eq ptr %type, @jitgrad_type_float
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %integer = select i1 %is_int, ptr %x, ptr null
  %found = select i1 %is_float, ptr @jitgrad_type_float, ptr %integer
  ret ptr %found
}}
"""


def _seen_key() -> str:
    """The key of a tensor in the table of those that were asked for (``key_place``); null where it is not there."""
    return f"""
define internal ptr @seen_key(ptr %x) #0 {{
entry:
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
{load("dims", "%x", DIMENSIONS)}
{load("descr", "%x", DESCR)}
  %few = icmp sle i64 %rank, {KEY_RANK}
  br i1 %few, label %start, label %no
start:
  %address = ptrtoint ptr %descr to i64
  %sum0 = lshr i64 %address, {DTYPE_SHIFT}
  %weighted = mul i64 %rank, {KEY_FACTORS[0]}
  %sum = add i64 %sum0, %weighted
{_extents()}
  %place = urem i64 %sum{KEY_RANK}, {KEYS}
  %first = mul i64 %place, {KEY_WORDS}
  %at = getelementptr i64, ptr @jitgrad_eager_keys, i64 %first
{load_word("dtype", "%at", 0, "ptr")}
{load_word("axes", "%at", 1)}
  %same_dtype = icmp eq ptr %dtype, %descr
  %same_rank = icmp eq i64 %axes, %rank
  %same = and i1 %same_dtype, %same_rank
{_comparisons()}
{load_word("key", "%at", KEY_WORDS - 1, "ptr")}
  %found = select i1 %same{KEY_RANK}, ptr %key, ptr null
  ret ptr %found
no:
  ret ptr null
}}
"""


def _extents() -> str:
    """The extents, 0 where there are no more axes, and the sum that says where the key is."""
    lines = []
    for k, factor in enumerate(KEY_FACTORS[1:]):
        before = "%sum" if k == 0 else f"%sum{k}"
        lines.append(f"""  %has{k} = icmp sgt i64 %rank, {k}
  br i1 %has{k}, label %read{k}, label %joined{k}
read{k}:
{load_word(f"read_extent{k}", "%dims", k)}
  br label %joined{k}
joined{k}:
  %extent{k} = phi i64 [ 0, %{"start" if k == 0 else f"joined{k - 1}"} ], [ %read_extent{k}, %read{k} ]
  %product{k} = mul i64 %extent{k}, {factor}
  %sum{k + 1} = add i64 {before}, %product{k}""")
    return "\n".join(lines)


def _comparisons() -> str:
    """Whether the extents are those of the key that was found."""
    lines = []
    for k in range(KEY_RANK):
        before = "%same" if k == 0 else f"%same{k}"
        lines.append(f"""{load_word(f"wanted{k}", "%at", 2 + k)}
  %equal{k} = icmp eq i64 %wanted{k}, %extent{k}
  %same{k + 1} = and i1 {before}, %equal{k}""")
    return "\n".join(lines)
