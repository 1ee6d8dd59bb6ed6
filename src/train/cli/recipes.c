/*
 * Recipes: files of options with their source, which the build compiles in (src/train/recipes). A recipe's
 * options rank above a checkpoint's and below those of --config and the command line.
 */
#include "cli_impl.h"
#include "base_impl.h"
#include "train/recipes.h"

static const struct {
    const char *name, *text;
} recipes[] = {HVT_RECIPES};

/* The recipe's file; NULL if no recipe has this name. json_decref() it. */
static json_t *read_recipe(const char *name)
{
    for (size_t i = 0; i < HVT_LEN(recipes); i++)
        if (!strcmp(recipes[i].name, name))
            return json_loads(recipes[i].text, 0, NULL);
    return NULL;
}

hvt_status hvt__recipe_options(const char *name, char **ret_text)
{
    json_t *recipe = read_recipe(name);
    char names[200] = "list", meant[HVT_HINT];

    for (size_t i = 0; i < HVT_LEN(recipes); i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "|%s", recipes[i].name);
    }
    hvt__hint_word(names, name, meant);
    hvt__replace(names, '|', ' ');
    HVT_CHECK(recipe, E_ARG, "--recipe: expected one of %s, got '%s'%s", names, name, meant);
    *ret_text = json_dumps(json_object_get(recipe, "options"), JSON_COMPACT);
    json_decref(recipe);
    HVT_CHECK(*ret_text, E_MEM, "no memory for a recipe");
    return HVT_OK;
}

static bool has_needed(const hvt_options *o, const char *name)
{
    const hvt__option *option = hvt__option_named(name, strlen(name));

    return hvt__option_given(o, (int)(option - hvt__option_table)) ||
           (!strcmp(name, "data") ? o->train_set != NULL : hvt__is_model_file(o->model));
}

hvt_status hvt__recipe_check(const hvt_options *o)
{
    const bool trains = !o->evaluate && (o->ask == HVT_ASK_TRAIN || o->ask == HVT_ASK_CHECK);
    json_t *recipe = trains && *o->recipe && !*o->resume ? read_recipe(o->recipe) : NULL, *what;
    const char *name;
    char all[400] = "";

    json_object_foreach(json_object_get(recipe, "needs"), name, what)
    {
        size_t used = strlen(all);
        if (!has_needed(o, name))
            snprintf(all + used, sizeof all - used, "%s%s", used ? "; and " : "", json_string_value(what));
    }
    json_decref(recipe);
    HVT_CHECK(!*all, E_ARG, "--recipe %s needs %s", o->recipe, all);
    return HVT_OK;
}

static void list_line(FILE *f, const char *title, const json_t *value)
{
    if (value)
        fprintf(f, "  %-9s  %s\n", title, json_string_value(value));
}

void hvt__list_recipes(FILE *f)
{
    for (size_t i = 0; i < HVT_LEN(recipes); i++) {
        json_t *recipe = read_recipe(recipes[i].name), *value;
        const char *option;

        fprintf(f, "%s%s\n  %s\n", i ? "\n" : "", recipes[i].name,
                json_string_value(json_object_get(recipe, "about")));
        list_line(f, "source", json_object_get(recipe, "source"));
        list_line(f, "differs", json_object_get(recipe, "differs"));
        list_line(f, "here", json_object_get(recipe, "here"));
        json_object_foreach(json_object_get(recipe, "needs"), option, value) list_line(f, "needs", value);
        fprintf(f, "  options   ");
        json_object_foreach(json_object_get(recipe, "options"), option, value)
        {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));

            for (char *p = text; p && *p; p++) /* no quotes and brackets */
                if (strchr("\"[]", *p))
                    memmove(p, p + 1, strlen(p)), p--;
            fprintf(f, " --%s %s", option, text ? text : "?");
            free(text);
        }
        fputc('\n', f);
        json_decref(recipe);
    }
}
