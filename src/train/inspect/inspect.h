/* inspect.h - the command `hvtrain inspect`. */
#ifndef HVT_TRAIN_INSPECT_H
#define HVT_TRAIN_INSPECT_H

#include "hvt/train.h"

/*
 * Prints the contents of each of opts->files on stdout: a model of --model or a .pt2 file (layers, shapes,
 * parameters, multiply-adds, and the memory of a run with these options on one rank), a .safetensors file
 * (its tensors and metadata), or a folder of --save (its options, progress, classes and checkpoints). Without
 * files: opts->model; with opts->output the first training images of opts->data as this run changes them, as
 * PNG files in that folder. Needs no world. Errors: E_ARG for anything else, E_IO and E_FORMAT naming the
 * file; files before it in the list have been printed.
 */
hvt_status hvt__inspect(const hvt_options *opts);

#endif /* HVT_TRAIN_INSPECT_H */
