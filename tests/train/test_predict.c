/*
 * predict: the five best classes of an image, the output for it, and a whole set without labels; see also
 * test_predictions.py, which runs the program.
 */
#include "train/run.h"
#include "base_impl.h"
#include "folder.h"
#include "own_set.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

static void check_best(const float *logits, int classes, const int32_t want[HVT__BEST])
{
    hvt__prediction p;

    hvt__predict(logits, classes, &p);
    CHECK(!memcmp(p.of, want, sizeof p.of), "%d %d %d %d %d", p.of[0], p.of[1], p.of[2], p.of[3], p.of[4]);
}

TEST(the_best_are_in_order_and_of_equals_the_first)
{
    check_best((float[]){1, 2, 3, 4, 5, 6, 7}, 7, (int32_t[]){6, 5, 4, 3, 2});
    check_best((float[]){7, 6, 5, 4, 3, 2, 1}, 7, (int32_t[]){0, 1, 2, 3, 4});
    check_best((float[]){2, 2, 9, 2, 9, 2, 2}, 7, (int32_t[]){2, 4, 0, 1, 3});
    check_best((float[]){0, -INFINITY, 1}, 3, (int32_t[]){2, 0, 1, -1, -1});
    check_best((float[]){5, NAN, 6, NAN, 1, 2}, 6, (int32_t[]){1, 3, 2, 0, 5});
}

TEST(probabilities_are_softmax_in_double)
{
    hvt__prediction p;

    hvt__predict((float[]){1000, 999, -1000}, 3, &p); /* exp(1000) is too large for any type */
    CHECK(fabs(p.part[0] - 1 / (1 + exp(-1))) < 1e-15 && fabs(p.part[0] + p.part[1] - 1) < 1e-15 &&
              p.part[2] == 0,
          "%.17g %.17g %g", p.part[0], p.part[1], p.part[2]);
    hvt__predict((float[]){1, NAN}, 2, &p);
    CHECK(isnan(p.part[0]) && isnan(p.part[1]), "%g %g", p.part[0], p.part[1]);
    hvt__predict((float[]){1, INFINITY}, 2, &p);
    CHECK(p.of[0] == 1 && isnan(p.part[0]), "%g", p.part[0]);
}

/* ---- what is written ---- */

static hvt_status odd_name(void *ctx, uint32_t index, char *ret_name, size_t room)
{
    static const char *const names[] = {"plain.jpg", "with, comma", "a \"quote\"", "\"", "two\nlines", ""};

    (void)ctx;
    snprintf(ret_name, room, "%s", names[index % HVT_LEN(names)]);
    return HVT_OK;
}

static const char *class_name(void *ctx, int label)
{
    static const char *const names[] = {"cat", "dog, small", "c", "d", "e", "f", "g"};

    (void)ctx;
    return names[label];
}

static char *content(const char *name, size_t *ret_bytes)
{
    FILE *f = fopen(in_folder(name), "r");
    char *text = calloc(1, 1 << 20);

    *ret_bytes = f ? fread(text, 1, (1 << 20) - 1, f) : 0;
    CHECK(f, "%s cannot be read", name);
    if (f)
        fclose(f);
    return text;
}

static void commit(hvt__output *out)
{
    CHECK_OK(hvt__output_finish(out));
    CHECK_OK(hvt__output_replace(out));
}

static void check_content(const char *name, const char *want)
{
    size_t bytes;
    char *text = content(name, &bytes);

    CHECK(!strcmp(text, want), "%s has:\n%s", name, text);
    free(text);
}

TEST(fields_are_quoted_as_rfc_4180_says)
{
    own o = {.h = 4, .w = 4, .c = 3};
    hvt_source source = own_source(&o, 6);
    hvt_dataset *set = NULL;
    hvt__output out;
    hvt__prediction p = {.label = 1, .of = {1, 0, -1, -1, -1}, .there = true, .part = {.75, .25}};
    hvt__table table = {.classes = 2};

    source.name = odd_name;
    source.class_name = class_name;
    CHECK_OK(hvt_dataset_from(&source, 0, &set));
    table.set = set;
    CHECK_OK(hvt__output_open(&out, HVT__PREDICTIONS, "--predict", in_folder("a.csv")));
    CHECK_OK(hvt__csv_begin(&out, &table));
    for (p.id = 0; p.id < 6; p.id++) {
        p.there = p.id != 4; /* one that was skipped */
        p.label = p.id == 5 ? -1 : 1;
        CHECK_OK(hvt__csv_put(&out, &table, &p));
    }
    commit(&out);
    check_content("a.csv", "index,file,label,label_name,class1,name1,probability1,class2,name2,probability2\n"
                           "0,plain.jpg,1,\"dog, small\",1,\"dog, small\",0.75,0,cat,0.25\n"
                           "1,\"with, comma\",1,\"dog, small\",1,\"dog, small\",0.75,0,cat,0.25\n"
                           "2,\"a \"\"quote\"\"\",1,\"dog, small\",1,\"dog, small\",0.75,0,cat,0.25\n"
                           "3,\"\"\"\",1,\"dog, small\",1,\"dog, small\",0.75,0,cat,0.25\n"
                           "4,\"two\nlines\",,,,,,,,\n"
                           "5,,,,1,\"dog, small\",0.75,0,cat,0.25\n");
    hvt_dataset_close(&set);
}

/* The data's names are of labels, the weights' of classes; each where the other has none. */
TEST(names_are_those_of_the_weights_and_a_labels_that_of_the_data)
{
    static const char *const want[] = {"0,image 0,1,\"dog, small\",1,Hund,0.75,0,Katze,0.25\n",
                                       "0,image 0,1,Hund,1,Hund,0.75,0,Katze,0.25\n",
                                       "0,image 0,1,,1,,0.75,0,Katze,0.25\n"};
    own o = {.h = 4, .w = 4, .c = 3};
    hvt__prediction p = {.label = 1, .of = {1, 0, -1, -1, -1}, .there = true, .part = {.75, .25}};
    json_t *names = json_pack("[s, s]", "Katze", "Hund");

    for (size_t i = 0; i < HVT_LEN(want); i++) {
        hvt_source source = own_source(&o, 1);
        hvt__table table = {.classes = 2, .names = names};
        hvt_dataset *set = NULL;
        hvt__output out;
        char text[300];

        source.class_name = i ? NULL : class_name;
        if (i == 2)
            json_array_remove(names, 1);
        CHECK_OK(hvt_dataset_from(&source, 0, &set));
        table.set = set;
        CHECK_OK(hvt__output_open(&out, HVT__PREDICTIONS, "--predict", in_folder("n.csv")));
        CHECK_OK(hvt__csv_begin(&out, &table));
        CHECK_OK(hvt__csv_put(&out, &table, &p));
        commit(&out);
        snprintf(text, sizeof text, "%s%s",
                 "index,file,label,label_name,class1,name1,probability1,class2,name2,probability2\n",
                 want[i]);
        check_content("n.csv", text);
        hvt_dataset_close(&set);
    }
    json_decref(names);
}

TEST(a_file_is_replaced_when_it_is_complete)
{
    static const char old[] = "index,file,label,old", new[] = "index,file,label,new";
    hvt__output out;
    struct stat info;

    for (int round = 0; round < 2; round++) {
        CHECK_OK(hvt__output_open(&out, HVT__PREDICTIONS, "--predict", in_folder("b.csv")));
        CHECK_OK(hvt__output_put(&out, round ? new : old, strlen(old)));
        if (round)
            check_content("b.csv", old);
        commit(&out);
        check_content("b.csv", round ? new : old);
    }
    CHECK_OK(hvt__output_open(&out, HVT__PREDICTIONS, "--predict", in_folder("b.csv")));
    CHECK_OK(hvt__output_put(&out, "half", 4));
    hvt__output_drop(&out);
    hvt__output_drop(&out);
    check_content("b.csv", new);
    CHECK(stat(in_folder("b.csv.tmp"), &info), "b.csv.tmp is left");
    CHECK_FAILS(hvt__output_open(&out, HVT__PREDICTIONS, "--predict", in_folder("none/b.csv")), E_IO,
                "--predict");
    CHECK_FAILS(hvt__output_open(&out, HVT__PREDICTIONS, "--predict", folder), E_IO, folder);
    CHECK_OK(hvt__output_open(&out, HVT__LOGITS, "--predict-logits", "/dev/full"));
    CHECK_OK(hvt__output_put(&out, "x", 1)); /* it is in a buffer */
    CHECK_FAILS(hvt__output_finish(&out), E_IO, "--predict-logits /dev/full: cannot write: No space left");
    hvt__output_drop(&out);
    CHECK(stat("/dev/full", &info) == 0 && S_ISCHR(info.st_mode), "/dev/full is gone");
}

TEST(a_npy_header_is_a_multiple_of_64_bytes)
{
    for (uint32_t count = 1; count && count < 4000000000; count *= 7) {
        hvt__output out;
        size_t bytes;
        char *text, want[60];

        CHECK_OK(hvt__output_open(&out, HVT__LOGITS, "--predict-logits", in_folder("h.npy")));
        CHECK_OK(hvt__npy_begin(&out, count, 1000, 1, 1));
        commit(&out);
        text = content("h.npy", &bytes);
        snprintf(want, sizeof want, "'shape': (%u, 1000), }", count);
        CHECK(bytes % 64 == 0 && !memcmp(text, "\x93NUMPY\x01\x00", 8) && strstr(text + 10, want) &&
                  (uint8_t)text[8] + 256 * (uint8_t)text[9] == (int)bytes - 10 && text[bytes - 1] == '\n',
              "%u: %zu bytes", count, bytes);
        free(text);
        if (count > UINT32_MAX / 7)
            break;
    }
}

/* ---- a whole set ---- */

static hvt_status own_unlabelled(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    HVT_TRY(own_get(ctx, index, ret_pixels, ret_label));
    *ret_label = -1;
    return HVT_OK;
}

enum { SIDE = 8, IMAGES = 11, CLASSES = 3, BATCH = 4 };

TEST(a_set_without_labels_has_predictions_and_no_loss)
{
    own o = {.h = SIDE, .w = SIDE, .c = 3};
    hvt_source source = own_source(&o, IMAGES);
    hvt_dataset *set = NULL;
    hvt_device *dev = NULL;
    hvt_world *world = NULL;
    hvt_loss loss;
    hvt__odd_losses odd;
    bool whole;
    run t = {0};
    float *x = malloc(IMAGES * SIDE * SIDE * 3 * sizeof *x), want[IMAGES * CLASSES];
    size_t bytes;
    char *text;

    source.get = own_unlabelled;
    source.info.unlabelled = true;
    source.info.classes = 0;
    CHECK_OK(hvt_world_open("singleton", &world));
    CHECK_OK(hvt_device_open("cpu", NULL, &dev));
    CHECK_OK(hvt_dataset_from(&source, 0, &set));
    t.test_set = set;
    CHECK_OK(hvt_model_create(dev, &t.model));
    CHECK_OK(hvt_model_plan(t.model, BATCH,
                            hvt_zoo(t.model, "resnet20", hvt_input(t.model, SIDE, SIDE, 3), CLASSES, NULL)));
    CHECK_OK(hvt_model_init(t.model, 1));
    CHECK_OK(hvt_loader_open(t.test_set, dev,
                             &(hvt_loader_opts){.batch = BATCH,
                                                .shards = 1,
                                                .shard_count = 1,
                                                .std = {1, 1, 1},
                                                .order = hvt_model_order(t.model)},
                             &t.test_data));
    CHECK_OK(hvt__predictions_open(&(hvt__predictions_opts){.csv = in_folder("u.csv"),
                                                            .npy = in_folder("u.npy"),
                                                            .masks = "",
                                                            .h = 1,
                                                            .w = 1,
                                                            .set = t.test_set,
                                                            .dev = dev,
                                                            .world = world,
                                                            .batch = BATCH,
                                                            .classes = CLASSES},
                                   &t.predictions));
    CHECK_OK(hvt__evaluate(t.model, t.test_data, world, NULL, &t, &loss, &odd, &whole));
    CHECK(whole && isnan(loss.sum) && loss.count == IMAGES && !loss.top1 && !odd.nan, "loss %g of %lld",
          loss.sum, (long long)loss.count);
    for (int i = 0, k = 0; i < IMAGES; i++)
        for (int e = 0; e < SIDE * SIDE * 3; e++, k++)
            x[k] = own_byte((uint32_t)i, e / 3 / SIDE, e / 3 % SIDE, e % 3) * (float)(1 / 255.);
    CHECK_OK(hvt_model_predict(t.model, x, IMAGES, want));
    text = content("u.npy", &bytes);
    CHECK(bytes > sizeof want && !memcmp(text + bytes - sizeof want, want, sizeof want),
          "logits other than hvt_model_predict()'s");
    free(text);
    text = content("u.csv", &bytes);
    CHECK(
        !strncmp(text,
                 "index,file,label,class1,probability1,class2,probability2,class3,probability3\n0,image 0,,",
                 88),
        "%.200s", text);
    free(text);
    hvt__predictions_close(&t.predictions);
    loss = (hvt_loss){.count = 7};
    CHECK_FAILS(hvt_evaluate(t.model, t.test_data, world, &loss), E_ARG, "no labels to evaluate with");
    CHECK(hvt_last_error_is_agreed() && loss.count == 7, "a loss without labels");
    hvt_loader_close(&t.test_data);
    hvt_model_free(&t.model);
    hvt_dataset_close(&set);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    free(x);
}

int main(void)
{
    if (!folder_make())
        return 1;
    RUN(the_best_are_in_order_and_of_equals_the_first);
    RUN(probabilities_are_softmax_in_double);
    RUN(fields_are_quoted_as_rfc_4180_says);
    RUN(names_are_those_of_the_weights_and_a_labels_that_of_the_data);
    RUN(a_file_is_replaced_when_it_is_complete);
    RUN(a_npy_header_is_a_multiple_of_64_bytes);
    RUN(a_set_without_labels_has_predictions_and_no_loss);
    CHECK(folder_remove(), "%s is left", folder);
    return check_done();
}
