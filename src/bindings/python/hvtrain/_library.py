"""The C library: its functions, its structs and its errors. Headers in include/hvt describe them all."""
from __future__ import annotations

import ctypes
import pathlib
import sys
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p

lib = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libhvt.so")))

F32, F16, BF16, I32, U8, F64, I8, I64 = range(8)
DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16, "int32": I32, "uint8": U8, "bool": U8, "float64": F64,
          "int8": I8, "int64": I64}
SIZES = {F32: 4, F16: 2, BF16: 2, I32: 4, U8: 1, F64: 8, I8: 1, I64: 8}
SUM, AVERAGE, MIN, MAX, PRODUCT, _, ADASUM = range(7)


class HvtError(RuntimeError):
    """An error of the library. status: its name, such as "E_ARG". agreed: every rank has the same one."""

    def __init__(self, status: str, message: str, agreed: bool):
        super().__init__(f"{message} ({status})")
        self.status, self.message, self.agreed = status, message, agreed


class Scale(Structure):
    _fields_ = [("pre", c_double), ("post", c_double)]


class Piece(Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("count", c_size_t), ("dtype", c_int), ("wire", c_int)]


class DeviceOpts(Structure):
    _fields_ = [("index", c_int), ("share", c_bool), ("deterministic", c_bool), ("tf32", c_bool),
                ("plan_cache", c_char_p), ("threads", c_int), ("cpus", c_void_p), ("ncpus", c_int),
                ("pin_caller", c_bool), ("conv_tile", c_int), ("yield_", c_bool), ("isa", c_char_p)]


class ZooOpts(Structure):
    _fields_ = [("imagenet_stem", c_bool), ("projection", c_bool), ("no_dropout", c_bool)]


class LossOpts(Structure):
    _fields_ = [("kind", c_int), ("label_smoothing", c_float)]


class Loss(Structure):
    _fields_ = [("sum", c_double), ("top1", c_int64), ("top5", c_int64), ("count", c_int64), ("error", c_double),
                ("iou", c_double)]


class NetData(Structure):
    _fields_ = [("count", c_int64), ("images", c_void_p), ("type", c_int), ("layout", c_int), ("targets", c_void_p),
                ("target_type", c_int), ("refused", c_char_p)]


class NetParts(Structure):
    _fields_ = ([(name, c_void_p) for name in ("world", "dev", "comm", "model", "optim", "dist")] +
                [(name, c_int) for name in ("height", "width", "channels", "outputs", "labels")])


class Named(Structure):
    _fields_ = [("name", c_char_p), ("ndim", c_int), ("dim", c_int * 4), ("count", c_size_t)]


class Report(Structure):
    _fields_ = [("epochs", c_int), ("steps", c_int64), ("test", Loss), ("img_s", c_double), ("seconds", c_double),
                ("weights", c_uint64), ("preempted", c_bool)]


class Record(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("room", c_size_t), ("encoding", c_int), ("height", c_int),
                ("width", c_int), ("label", c_int)]


class DatasetInfo(Structure):
    _fields_ = [("name", c_char_p), ("count", c_uint32), ("classes", c_int), ("height", c_int), ("width", c_int),
                ("channels", c_int), ("fingerprint", c_uint64), ("type", c_int), ("unlabelled", c_bool),
                ("targets", c_int), ("target_h", c_int), ("target_w", c_int), ("masks", c_bool)]


READ_FN = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint32, POINTER(Record))
LABEL_FN = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint32)
TARGET_FN = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint32, POINTER(c_float))


class Source(Structure):
    _fields_ = [("info", DatasetInfo), ("get", c_void_p), ("read", READ_FN), ("label", LABEL_FN), ("target", TARGET_FN),
                ("mask", c_void_p), ("mask_name", c_void_p), ("name", c_void_p), ("ahead", c_void_p),
                ("class_name", c_void_p), ("close", c_void_p), ("ctx", c_void_p)]


class Ema(Structure):
    _fields_ = [("decay", c_double), ("every", c_int), ("equal", c_bool)]


class OptimOpts(Structure):
    _fields_ = [("momentum", c_float), ("dampening", c_float), ("weight_decay", c_float), ("nesterov", c_bool),
                ("no_decay_norm", c_bool), ("no_decay_bias", c_bool), ("kind", c_int), ("betas", c_double * 2),
                ("eps", c_double), ("ema", Ema)]


class Conv2dOpts(Structure):
    _fields_ = ([(name, c_int) for name in ("filters", "kernel_h", "kernel_w", "stride_h", "stride_w", "top", "left",
                                            "bottom", "right", "dilation_h", "dilation_w", "groups")] +
                [("bias", c_bool), ("line", c_bool), ("dirac", c_bool)])


class InterpolateOpts(Structure):
    _fields_ = [("kind", c_int), ("height", c_int), ("width", c_int), ("scale_h", c_double), ("scale_w", c_double),
                ("align_corners", c_bool), ("antialias", c_bool)]


class NetProgress(Structure):
    _fields_ = [("updates", c_int64), ("epoch", c_int64), ("loss", c_double), ("images", c_int64)]


BUILD_FN = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
PROGRESS_FN = ctypes.CFUNCTYPE(None, c_void_p, POINTER(NetProgress))


class NetOpts(Structure):
    _fields_ = [("height", c_int), ("width", c_int), ("channels", c_int), ("outputs", c_int), ("zoo", ZooOpts),
                ("build", BUILD_FN), ("loss", LossOpts), ("optim", OptimOpts), ("lr", c_double), ("batch", c_int64),
                ("shard", c_int), ("seed", c_uint64), ("compute", c_int), ("device", c_char_p), ("threads", c_int),
                ("progress", PROGRESS_FN), ("ctx", c_void_p), ("devices", c_int), ("split_at", c_char_p),
                ("refused", c_char_p)]


LOG_FN = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
# tests/python compares them with the compiler's.
STRUCTS = {"hvt_scale": Scale, "hvt_piece": Piece, "hvt_device_opts": DeviceOpts, "hvt_zoo_opts": ZooOpts,
           "hvt_loss_opts": LossOpts, "hvt_loss": Loss, "hvt_net_data": NetData, "hvt_net_parts": NetParts,
           "hvt_named": Named, "hvt_report": Report, "hvt_record": Record, "hvt_dataset_info": DatasetInfo,
           "hvt_source": Source, "hvt_optim_opts": OptimOpts, "hvt_net_opts": NetOpts, "hvt_net_progress": NetProgress,
           "hvt_conv2d_opts": Conv2dOpts, "hvt_interpolate_opts": InterpolateOpts}

HANDLE, RESULT = c_void_p, POINTER(c_void_p)
_status = {  # functions that return a status, by their arguments
    "hvt_world_open": [c_char_p, RESULT], "hvt_world_wrap": [c_void_p, RESULT], "hvt_world_barrier": [HANDLE],
    "hvt_device_open": [c_char_p, POINTER(DeviceOpts), RESULT],
    "hvt_comm_open": [c_char_p, HANDLE, HANDLE, RESULT], "hvt_comm_wait": [HANDLE, c_uint64],
    "hvt_allreduce": [HANDLE, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(Scale), POINTER(c_uint64)],
    "hvt_reduce_scatter": [HANDLE, c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_int, c_int, POINTER(Scale),
                           POINTER(c_uint64)],
    "hvt_broadcast": [HANDLE, c_void_p, c_size_t, c_int, c_int, POINTER(c_uint64)],
    "hvt_allgather": [HANDLE, c_void_p, c_size_t, c_void_p, POINTER(c_size_t), c_int, POINTER(c_uint64)],
    "hvt_alltoall": [HANDLE, c_void_p, POINTER(c_size_t), c_void_p, POINTER(c_size_t), c_int, POINTER(c_uint64)],
    "hvt_barrier": [HANDLE, POINTER(c_uint64)],
    "hvt_fuse_create": [HANDLE, POINTER(Piece), c_int, c_size_t, c_int, RESULT],
    "hvt_fuse_ready_at": [HANDLE, c_int, c_void_p], "hvt_fuse_exchange": [HANDLE],
    "hvt_fuse_join": [HANDLE, POINTER(c_int)],
    "hvt_model_hash": [HANDLE, POINTER(c_uint64)],
    "hvt_model_get": [HANDLE, c_char_p, POINTER(c_float), c_size_t],
    "hvt_record_reserve": [POINTER(Record), c_size_t],
    "hvt_dataset_from": [POINTER(Source), c_uint32, RESULT],
    "hvt_train_args": [c_int, POINTER(c_char_p), HANDLE, HANDLE, HANDLE, POINTER(Report)],
    "hvt_net_open": [c_char_p, POINTER(NetOpts), c_void_p, RESULT],
    "hvt_net_train": [HANDLE, POINTER(NetData), c_int, POINTER(Loss)],
    "hvt_net_infer": [HANDLE, POINTER(NetData), c_void_p, c_int],
    "hvt_net_save": [HANDLE, c_char_p], "hvt_net_load": [HANDLE, c_char_p], "hvt_net_set_lr": [HANDLE, c_double],
}
_other = {  # the others: (result, arguments)
    "hvt_version": (c_char_p, []), "hvt_last_error": (c_char_p, []), "hvt_status_name": (c_char_p, [c_int]),
    "hvt_last_error_is_agreed": (c_bool, []), "hvt_log_to": (None, [LOG_FN, c_void_p, c_int]),
    "hvt_world_close": (None, [RESULT]), "hvt_world_rank": (c_int, [HANDLE]), "hvt_world_size": (c_int, [HANDLE]),
    "hvt_world_local_rank": (c_int, [HANDLE]), "hvt_world_local_size": (c_int, [HANDLE]),
    "hvt_world_nodes": (c_int, [HANDLE]), "hvt_world_host": (c_char_p, [HANDLE, c_int]), "hvt_world_abort": (None, [HANDLE, c_int]),
    "hvt_device_close": (None, [RESULT]), "hvt_comm_close": (None, [RESULT]), "hvt_fuse_free": (None, [RESULT]),
    "hvt_dataset_close": (None, [RESULT]), "hvt_net_close": (None, [RESULT]), "hvt_net_describe": (NetParts, [HANDLE]),
    "hvt_model_output": (None, [HANDLE, POINTER(c_int)]), "hvt_model_named": (c_bool, [HANDLE, c_int, POINTER(Named)]),
}


def _check(status, function, arguments):
    if status:
        raise HvtError(lib.hvt_status_name(status).decode(), lib.hvt_last_error().decode(errors="replace"),
                       lib.hvt_last_error_is_agreed())
    return status


for _name, _arguments in _status.items():
    _function = getattr(lib, _name)
    _function.argtypes, _function.restype, _function.errcheck = _arguments, c_int, _check
for _name, (_result, _arguments) in _other.items():
    _function = getattr(lib, _name)
    _function.argtypes, _function.restype = _arguments, _result


def is_tensor(x) -> bool:
    """True for a tensor of PyTorch, without importing it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_of(x) -> int:
    """The library's number of the type of a tensor or an array."""
    name = str(x.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise HvtError("E_ARG", f"elements are {name}, expected one of {', '.join(DTYPES)}", False)
    return DTYPES[name]


def address_of(x) -> int:
    return x.data_ptr() if is_tensor(x) else x.ctypes.data


def count_of(x) -> int:
    return x.numel() if is_tensor(x) else x.size


def dense(x):
    """x as contiguous host memory; a copy if necessary."""
    if not is_tensor(x):
        import numpy
        return numpy.ascontiguousarray(x)
    if x.device.type != "cpu":
        raise HvtError("E_UNSUPPORTED", f"the tensor is on device {x.device}, expected one in host memory (cpu)", False)
    if x.layout != sys.modules["torch"].strided:
        raise HvtError("E_UNSUPPORTED", "the tensor is sparse, expected a dense one: use to_dense()", False)
    return x.detach().contiguous()


def empty(like, shape):
    if is_tensor(like):
        return like.new_empty(shape, requires_grad=False)
    import numpy
    return numpy.empty(shape, like.dtype)
