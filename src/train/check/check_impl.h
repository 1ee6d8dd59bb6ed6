/*
 * check_impl.h - `hvtrain check`: the facts of each rank (facts.c), their meaning for the job (judge.c), and
 * active checks: opening the data (data.c), writing a file to --save (save.c), sums over the ranks (sums.c).
 */
#ifndef HVT_TRAIN_CHECK_IMPL_H
#define HVT_TRAIN_CHECK_IMPL_H

#include "train/report/report_impl.h"
#include "world/facts.h"

typedef enum hvt__grade { HVT__GOOD, HVT__DOUBTFUL, HVT__WRONG } hvt__grade;

/* A line of the output: a grade, and the finding or the remedy. */
typedef struct hvt__line {
    hvt__grade grade;
    char text[1500];
} hvt__line;

/* Sets or extends the text. */
void hvt__line_set(hvt__line *l, hvt__grade grade, const char *fmt, ...) HVT_PRINTF(3, 4);
void hvt__line_add(hvt__line *l, const char *fmt, ...) HVT_PRINTF(2, 3);

/* ---- facts.c ---- */

enum { HVT__SET_NAMES = 3, HVT__MASK_CPUS = 1024 };
extern const char *const hvt__set_name[HVT__SET_NAMES]; /* instruction sets, weakest first */

/* A rank's facts about its process and host. */
typedef struct hvt__facts {
    bool has[HVT__SET_NAMES];           /* the processor has this instruction set */
    uint64_t mask[HVT__MASK_CPUS / 64]; /* processors that it may run on */
    hvt__net net[HVT__NETS_MOST];
    int nets;
    int rdma_gbits;              /* of InfiniBand or RoCE; 0: none */
    double shm, shm_due, memory; /* bytes, by hvt__shm_room() and hvt__memory_available() */
    double memlock, address_space, cpu_seconds, files; /* limits; INFINITY: none */
    char governor[16];                                 /* of the first processor; "": unknown */
    bool driver;                                       /* NVIDIA's is loaded */
    char data[200];                                    /* why --data-dir cannot be read; "": readable */
    char model[200];                                   /* the same for --model FILE.pt2 */
} hvt__facts;

void hvt__facts_find(const hvt_options *opts, hvt__facts *ret_facts);

/* ---- judge.c ---- */

/* The facts of all ranks. */
typedef struct hvt__ranks {
    int n;
    const char *const *host;      /* [n] */
    const hvt_placement *place;   /* [n] */
    const hvt__facts *fact;       /* [n] */
    const double *ahead, *unsure; /* [n] seconds that the clock is ahead of rank 0's; and their error */
    bool *in;                     /* [n] scratch */
} hvt__ranks;

/* "4 ranks on 2 hosts, 2 each" */
void hvt__hosts_text(const hvt__ranks *r, char ret_text[200]);
/* isa: the cpu device's choice; NULL: not used. */
hvt__line hvt__judge_build(const hvt__ranks *r, const char *isa);
hvt__line hvt__judge_network(const hvt__ranks *r);
hvt__line hvt__judge_cores(const hvt__ranks *r);
/* used: --device cuda. built: the build has that device. */
hvt__line hvt__judge_gpus(const hvt__ranks *r, bool used, bool built);
hvt__line hvt__judge_memory(const hvt__ranks *r);
hvt__line hvt__judge_limits(const hvt__ranks *r);
hvt__line hvt__judge_clocks(const hvt__ranks *r);
/* Says which ranks cannot read the files that the options name. "": all can. */
hvt__line hvt__judge_files(const hvt__ranks *r, const hvt_options *opts);

/* ---- data.c ---- */

/* On rank 0: opens the data as a run does, on a thread, and waits this long for it; 0: without limit.
 * *ret_opens: the data are still being opened, so the strings of opts must stay until the process ends. */
hvt__line hvt__check_data(const hvt_options *opts, const hvt__ranks *r, double seconds, bool *ret_opens);

/* ---- save.c ---- */

/* On rank 0: checks that checkpoints of so many bytes can be written to --save; 0: unknown size. Leaves
 * nothing behind. */
hvt__line hvt__check_save(const hvt_options *opts, uint64_t bytes);

/* ---- model.c ---- */

/* The approximate needs of a run, without opening its data. */
typedef struct hvt__needs {
    double memory;       /* bytes of a rank: model and optimizer */
    uint64_t checkpoint; /* bytes; 0: not known */
    char images[40];     /* "224x224x3" */
    int batch;           /* images of a shard */
} hvt__needs;

/* The needs of a run with these options. dev: a host device. Errors: those of the model. */
hvt_status hvt__find_needs(const hvt_options *opts, const hvt_resolved *set, hvt_device *dev,
                           hvt__needs *ret_needs);
hvt__line hvt__judge_needs(const hvt__ranks *r, const hvt__needs *needs, const hvt_options *opts,
                           bool on_gpu);

/* ---- sums.c ---- */

/* Sums over the comm that a run would choose, on the given device. Takes at most some tenths of a second if
 * all ranks answer; otherwise the watchdog ends the check. Collective. Errors are agreed. */
typedef struct hvt__sums {
    char comm[16];
    double small, large; /* seconds of one sum, the median */
    size_t small_bytes, large_bytes;
    int wrong; /* elements with another sum than expected, on all ranks */
} hvt__sums;
hvt_status hvt__check_sums(const hvt_options *opts, hvt_world *world, hvt_device *dev, hvt__sums *ret_sums);
hvt__line hvt__judge_sums(const hvt__ranks *r, const hvt__sums *s, const char *asked);

#endif /* HVT_TRAIN_CHECK_IMPL_H */
