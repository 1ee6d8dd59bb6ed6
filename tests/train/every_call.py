"""Usage: every_call.py OUTPUT HEADER ... Writes a table of all public functions, which test_calls.c calls with NULL, and
with impossible numbers, for each of their arguments. A new function or type enters the table automatically, or ends
this program: none can be forgotten."""
import re
import sys

# An argument of these types, in C. The handles are test_calls.c's; "odd" is what a number cannot be.
HANDLES = {"hvt_device": "dev", "hvt_world": "lone", "hvt_comm": "comm", "hvt_model": "model", "hvt_optim": "optim",
           "hvt_distopt": "dist", "hvt_dataset": "set", "hvt_loader": "loader", "hvt_schedule": "schedule",
           "hvt_fuse": "fuse", "hvt_graph": "graph", "hvt_pt2": "pt2", "hvt_net": "net"}
STRUCTS = ["hvt_device_opts", "hvt_dataset_opts", "hvt_loader_opts", "hvt_optim_opts", "hvt_schedule_opts",
           "hvt_distopt_opts", "hvt_source", "hvt_record", "hvt_pack_opts", "hvt_batch", "hvt_arrays", "hvt_options",
           "hvt_conv2d_opts", "hvt_interpolate_opts", "hvt_pool_opts", "hvt_attention_opts", "hvt_rotary_opts",
           "hvt_zoo_opts", "hvt_loss_opts",
           "hvt_progress", "hvt_stall", "hvt_overlap", "hvt_scale", "hvt_item", "hvt_piece", "hvt_tensor",
           "hvt_dataset_info", "hvt_tcp_opts", "hvt_net_opts", "hvt_net_data", "hvt_split_opts"]
RESULTS = ["hvt_device_info", "hvt_pack_info", "hvt_loader_info", "hvt_batch", "hvt_loss", "hvt_cutoff", "hvt_cores",
           "hvt_named", "hvt_report", "hvt_progress", "hvt_options", "hvt_ticket"]
FUNCTIONS = ["hvt_log_fn", "hvt_grad_fn", "hvt_reduce_apply_fn", "hvt_stalled_fn", "hvt_rank_fn"]
INTEGERS = {"int": "-1", "int64_t": "-1", "hvt_value": "-1"}
UNSIGNED = ["size_t", "uint32_t", "uint64_t", "unsigned", "hvt_ticket", "bool"]
REALS = ["float", "double"]
# Arguments that do not follow from their type, by function and name; "" for every function.
SPECIAL = {
    ("hvt_device_open", "name"): '"ref"', ("hvt_device_count", "name"): '"ref"',
    ("hvt_dataset_open", "name"): '"synth"', ("hvt_comm_open", "name"): '"self"', ("hvt_world_open", "name"): '"singleton"',
    ("hvt_zoo", "name"): '"resnet20"', ("hvt_zoo_takes", "name"): '"resnet20"',
    ("hvt_options_set", "name"): '"lr"', ("hvt_options_set", "value"): '"0.1"',
    ("hvt_model_get", "name"): '"fc.bias"', ("hvt_model_set", "name"): '"fc.bias"',
    ("hvt_model_get", "count"): "3", ("hvt_model_set", "count"): "3",
    ("hvt_checkpoint_save", "dir"): "folder", ("hvt_checkpoint_load", "path"): "saved", ("hvt_weights_load", "file"): "saved",
    ("hvt_spawn", "n"): "0",
    ("hvt_optim_group", "prefixes"): '"fc"', ("hvt_model_freeze", "prefixes"): '"conv"',
    ("hvt_comm_set_cutoffs", "list"): '"mpi-short=4096"', ("hvt_model_alias", "of"): '"conv.weight"',
    ("hvt_train_args", "argc"): "2", ("hvt_train_args", "argv"): "arguments",
    ("hvt_options_parse", "argc"): "2", ("hvt_options_parse", "argv"): "arguments",
    ("hvt_name", "fmt"): '"a"', ("hvt_conv2d", "filters"): "2", ("hvt_shuffle", "groups"): "3",
    ("hvt_distopt_begin", "shard_counts"): "counts", ("hvt_distopt_buckets", "ret_bytes"): "&sizes",
    ("hvt_concat", "in"): "values", ("hvt_constant", "values"): "(float *)room",
    ("hvt_comm_release", "ptr"): "block", ("hvt_transpose", "rows"): "64", ("hvt_transpose", "columns"): "3",
    ("hvt_transpose", "w"): "3", ("hvt_value_shape", "ret_hwc"): "(int *)room", ("", "dim"): "dims",
    ("hvt_model_output", "ret_hwc"): "(int *)room",
    ("hvt_fuse_create", "pieces"): "pieces", ("hvt_distopt_on_grad", "dist"): "dist", ("hvt_distopt_on_grad", "end"): "0",
    ("hvt_sampler_permutation", "count"): "4", ("hvt_reshape", "h"): "4", ("hvt_reshape", "w"): "16",
    ("hvt_subsample", "stride"): "2", ("hvt_subsample", "channels"): "5", ("hvt_maxpool", "size"): "2",
    ("hvt_groupnorm", "groups"): "3", ("hvt_add_embedding", "first"): "0", ("hvt_add_constant_embedding", "first"): "0",
    ("hvt_pixel_shuffle", "f"): "1", ("hvt_pixel_unshuffle", "f"): "2", ("hvt_slice", "first"): "0",
    ("hvt_slice", "count"): "1", ("hvt_linear", "x"): "2", ("hvt_adaptive_pool", "h"): "2", ("hvt_adaptive_pool", "w"): "2",
    ("", "ret_ticket"): "NULL",  # errors are then those of the call itself
    ("hvt_comm_allreduce", "ret_ticket"): "(void *)room", ("hvt_comm_reduce_scatter", "ret_ticket"): "(void *)room",
    ("hvt_comm_allgather", "ret_ticket"): "(void *)room", ("hvt_comm_reduce_apply", "ret_ticket"): "(void *)room",
    ("hvt_net_open", "name"): '"resnet20"', ("hvt_net_open", "mpi_comm"): "NULL",
    ("hvt_net_load", "path"): "saved", ("hvt_net_infer", "ret_type"): "HVT_F32",
    ("hvt_scatter", "count"): "4", ("", "counts"): "parts", ("", "send_counts"): "parts", ("", "recv_counts"): "parts",
    ("hvt_pt2_build", "images"): "0", ("hvt_combine_parameter", "dim"): "dims", ("hvt_layernorm", "over"): "0",
    ("hvt_reduce_scatter", "in"): "room", ("hvt_transpose", "h"): "1", ("hvt_transpose", "block"): "1",
    ("hvt_attention", "heads"): "1", ("hvt_self_attention", "heads"): "1", ("hvt_zeros", "h"): "2",
    ("hvt_weight_parameter", "init"): "0", ("hvt_weight_numbers", "values"): "gradient", ("hvt_weight_sum", "over"): "(bool *)room",
    ("hvt_weight_view", "w"): "3", ("hvt_weight_view", "stride"): "NULL", ("hvt_weight_sum", "w"): "3",
    ("hvt_weight_standardise", "w"): "3", ("hvt_weight_concat", "in"): "tensors", ("hvt_weight_concat", "count"): "2",
    ("hvt_weight_matmul", "a"): "4", ("hvt_weight_matmul", "b"): "4", ("hvt_conv2d_by", "weight"): "3", ("hvt_conv2d_by", "bias"): "-1",
    ("hvt_conv_transpose2d_by", "weight"): "5", ("hvt_conv_transpose2d_by", "bias"): "-1", ("hvt_linear_by", "x"): "2",
    ("hvt_linear_by", "weight"): "4", ("hvt_linear_by", "bias"): "-1", ("hvt_distopt_look_ahead", "decay"): "0.5",
    ("hvt_device_order", "height"): "8", ("hvt_dataset_targets", "ret_targets"): "(float *)room",
}
PLAIN = {"count": "4", "n": "1", "heads": "3", "p": "0.5", "eps": "1e-3f", "momentum": "0.1f", "classes": "3", "b": "1",
         "root": "0", "to": "0", "from": "0", "rank": "0", "shard": "0", "i": "0", "label": "0", "index": "0", "v": "0",
         "x": "0", "images": "0", "logits": "0", "q": "0", "qkv": "0", "k": "0", "color": "0", "key": "0", "pad": "0", "ndim": "1",
         "q, k": "0", "dtype": "HVT_F32", "t": "HVT_F32", "f": "HVT_RELU", "op": "HVT_ADD", "how": "HVT_SUM", "limit": "0",
         "step": "0", "epoch": "0", "sample": "0", "first": "0", "room": "64", "lr": "0.1", "lr_scale": "1", "threads": "1",
         "top": "0", "bottom": "0", "left": "0", "right": "0", "batch": "2", "exit_code": "9", "first_bytes": "0"}


def functions(headers):
    """(result, name, [(type, name, array)]) of each."""
    for header in headers:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", open(header).read(), flags=re.S)
        text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
        for found in re.finditer(r"HVT_API\b([^;]+);", text):
            one = " ".join(re.sub(r"HVT_PRINTF\([^)]*\)|__attribute__\(\(.*?\)\)", "", found.group(1)).split())
            result, name, args = re.fullmatch(r"(.*?[ *])(\w+)\((.*)\)", one).groups()
            yield result.strip(), name, [] if args == "void" else [parse(a) for a in args.split(", ")]


def parse(arg):
    if arg == "...":
        return arg, "...", ""
    kind, name, array = re.fullmatch(r"(.*?[ *])(\w+)(\[\w*\])?", arg).groups()
    return kind.strip(), name, array or ""


def pointer(function, kind, name):
    """What an argument that is a pointer points to."""
    base = kind.replace("const ", "").replace("*", "").strip()
    if special := SPECIAL.get((function, name)) or SPECIAL.get(("", name)):
        return special
    if base in HANDLES and kind.count("*") == 2:
        return f"&no_{HANDLES[base]}" if name.startswith("ret_") else f"&{HANDLES[base]}"
    if base in HANDLES:
        return HANDLES[base]
    if base in FUNCTIONS:
        return "answer_" + base[4:]
    if name.startswith("ret_") and base in RESULTS:
        return f"({base} *)room"
    if base in STRUCTS:
        return "&" + base[4:]
    if base == "char" and kind.startswith("const"):
        return '"x"'
    if base in ("char", "void", "float", "double", "int", "bool", "hvt_dtype") or re.fullmatch(r"u?int\d+_t|size_t|hvt_value", base):
        return f"(void *)room" if kind.count("*") == 1 else f"(void *)&memory"
    sys.exit(f"every_call.py: {function}(): no argument is known for {kind} {name}: add its type to this program")


def argument(function, i, kind, name, array):
    """Its kind, and the C for it."""
    if kind == "...":
        return "", ""
    if "*" in kind or array:
        return "p", f"P({i}, {pointer(function, kind, name)})"
    base = kind.replace("const ", "")
    plain = SPECIAL.get((function, name)) or PLAIN.get(name, "1")
    if base in INTEGERS:
        return "i", f"N({i}, {plain}, {INTEGERS[base]})"
    if base in REALS:
        return "r", f"N({i}, {plain}, NAN)"
    if base in UNSIGNED:
        return "u", plain
    if base.startswith("hvt_"):  # an enumeration
        return "e", f"({base})N({i}, {plain if not plain.isdigit() else 0}, 99)"
    sys.exit(f"every_call.py: {function}(): no argument is known for {kind} {name}: add its type to this program")


def call(result, name, args):
    """The function's line of the table, and what calls it."""
    made = [argument(name, i, *arg) for i, arg in enumerate(args)]
    text = f"{name}({', '.join(c for _, c in made if c)})"
    if result == "hvt_status":
        body = f"    ended_with({text});\n"
    elif result == "hvt_value":
        body = f"    ended_with({text} < 0 ? HVT_E_SHAPE : HVT_OK);\n"
    elif result == "const char *":
        body = f"    look_at({text});\n"
    else:
        body = f"    (void){text};\n"
    names = "|".join(n for _, n, _ in args)
    kinds = "".join(k or "-" for k, _ in made)
    failing = {"hvt_status": "STATUS", "hvt_value": "VALUE"}.get(result, "NOTHING")
    return (f'    {{"{name}", call_{name}, "{kinds}", "{names}", {failing}}},\n',
            f"static void call_{name}(int null, int odd)\n{{\n    (void)null, (void)odd;\n{body}}}\n\n")


def main():
    lines, bodies = zip(*(call(*f) for f in functions(sys.argv[2:])))
    with open(sys.argv[1], "w") as f:
        f.write("".join(bodies) + "static const every_call every_calls[] = {\n" + "".join(lines) + "};\n")


main()
