/* calls_allowed.h - the exceptions in test_calls.c, as documented in the headers: "FUNCTION ARGUMENT", with
 * wildcards. */

/* Right arguments fail all the same: there is no other rank, no MPI, no such file, or no way back from here.
 */
static const char *const fails_here[] = {"hvt_comm_reduce_apply ",
                                         "hvt_loader_divide ",
                                         "hvt_comm_share ",
                                         "hvt_comm_wait ",
                                         "hvt_concat ",
                                         "hvt_dataset_mask ",
                                         "hvt_dataset_pack ",
                                         "hvt_dataset_targets ",
                                         "hvt_distopt_capture* ",
                                         "hvt_distopt_create ",
                                         "hvt_distopt_look_ahead ", /* no average */
                                         "hvt_distopt_on_grad ",
                                         "hvt_distopt_replay ",
                                         "hvt_distopt_step ",
                                         "hvt_input ",
                                         "hvt_model_alias ",
                                         "hvt_model_predicted ",
                                         "hvt_model_attach ",
                                         "hvt_model_backward* ",
                                         "hvt_model_errors ",
                                         "hvt_model_fix_norms ",
                                         "hvt_model_freeze ",
                                         "hvt_model_logits ",
                                         "hvt_model_plan ",
                                         "hvt_model_rows ",
                                         "hvt_model_set_* ",
                                         "hvt_net_load ",
                                         "hvt_model_split ",
                                         "hvt_optim_group ",
                                         "hvt_options_prepare ",
                                         "hvt_pack ",
                                         "hvt_pt2_* ",
                                         "hvt_recv ",
                                         "hvt_report_write ",
                                         "hvt_send ",
                                         "hvt_spawn ",
                                         "hvt_world_join ",
                                         "hvt_world_wrap ",
                                         NULL};

static const char *const may_be_null[] = {"hvt_* ret_ticket",            /* the call waits by itself */
                                          "hvt_allgather *",             /* in place, and counts */
                                          "hvt_allreduce in",            /* in place */
                                          "hvt_allreduce scale",         /* factors of 1 */
                                          "hvt_checkpoint_* o",          /* no optimizer */
                                          "hvt_checkpoint_load m",       /* progress only */
                                          "hvt_comm_overlap how",        /* no worker any more */
                                          "hvt_comm_reduce_apply *",     /* comm self has none */
                                          "hvt_dataset_relabel map",     /* no labels any more */
                                          "hvt_device_open opts",        /* all defaults */
                                          "hvt_distopt_capture_end *",   /* this device has none */
                                          "hvt_fuse_join ret_last",      /* not asked for */
                                          "hvt_fuse_ready_at data",      /* none on this rank */
                                          "hvt_gather counts",           /* equal parts */
                                          "hvt_model_backward* on_grad", /* nobody asks */
                                          "hvt_model_backward* ctx",     /* the caller's own */
                                          "hvt_model_freeze prefixes",   /* none */
                                          "hvt_model_set_class_weights weights", /* none */
                                          "hvt_train_args *_set",                /* --data */
                                          "hvt_net_open mpi_comm",               /* as the environment says */
                                          "hvt_net_train ret_loss",              /* not asked for */
                                          "hvt_reduce_scatter counts",           /* equal parts */
                                          "hvt_reduce_scatter scale",            /* factors of 1 */
                                          "hvt_scatter counts",                  /* equal parts */
                                          "hvt_weight_view stride",              /* contiguous */
                                          "hvt_world_join opts",                 /* as the environment says */
                                          "hvt_world_open name",                 /* as the environment says */
                                          "hvt_world_open_threads ctx",          /* the caller's own */
                                          "hvt_world_watch world",               /* those opened later */
                                          "hvt_zoo opts",                        /* all false */
                                          NULL};

static const char *const may_be_odd[] = {"hvt_apply [ab]",          /* of HVT_RELU, which has none */
                                         "hvt_distopt_gather root", /* -1: every rank */
                                         "hvt_pad *",               /* negative: cut off */
                                         "hvt_world_agree mine",    /* a caller's status */
                                         "hvt_world_split color",   /* negative: in no group */
                                         "hvt_world_split key",     /* any number */
                                         "hvt_*_by bias",           /* none */
                                         NULL};
