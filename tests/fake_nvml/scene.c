#define _GNU_SOURCE
#include "scene.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* How often a rule with TIMES has been used: by its line and file, which name it uniquely. */
static struct {
    char key[TEXT];
    int uses;
} used_rules[1024];
static int used_rule_count;

static void reject(const char *line)
{
    fprintf(stderr, "fake NVML: cannot read the line: %s\n", line);
    abort();
}

static struct place parse_place(const char *text, const char *line)
{
    struct place place = {0, WHOLE};
    int fields = sscanf(text, "%d.%d", &place.device, &place.slot);
    if (fields < 1 || place.device < 0 || place.device >= DEVICES || place.slot >= MIG_SLOTS)
        reject(line);
    return place;
}

struct device *device_at(struct scene *scene, struct place place)
{
    return &scene->devices[place.device][place.slot + 1];
}

static void need(bool readable, const char *line)
{
    if (!readable)
        reject(line);
}

static void parse_device(struct scene *scene, const char *line)
{
    int index = -1, at = 0;
    struct device device = {.exists = true};
    need(sscanf(line, "device %d %255s %llu %llu %u %u %n", &index, device.uuid, &device.total,
                &device.used, &device.gpu_percent, &device.memory_percent, &at) == 6 &&
             index >= 0 && index < DEVICES && at > 0,
         line);
    snprintf(device.name, sizeof device.name, "%s", line + at);
    scene->devices[index][0] = device;
}

static void parse_mig(struct scene *scene, const char *line)
{
    int index = -1, slot = -1, at = 0;
    struct device device = {.exists = true};
    need(sscanf(line, "mig %d %d %255s %u %u %llu %llu %n", &index, &slot, device.uuid,
                &device.gpu_instance, &device.compute_instance, &device.total, &device.used,
                &at) == 7 &&
             index >= 0 && index < DEVICES && slot >= 0 && slot < MIG_SLOTS && at > 0,
         line);
    snprintf(device.name, sizeof device.name, "%s", line + at);
    scene->devices[index][1 + slot] = device;
}

static void parse_mode(struct scene *scene, const char *line)
{
    int index = -1;
    char mode[TEXT];
    need(sscanf(line, "mode %d %255s", &index, mode) == 2 && index >= 0 && index < DEVICES, line);
    scene->devices[index][0].mode = strcmp(mode, "mig-on") == 0 ? MIG_ON : MIG_OFF;
}

static void parse_sensors(struct scene *scene, const char *line)
{
    int index = -1;
    struct device read = {0};
    need(sscanf(line, "sensors %d %u %u %llu %llu", &index, &read.celsius, &read.milliwatts,
                &read.ecc_errors[0], &read.ecc_errors[1]) == 5 &&
             index >= 0 && index < DEVICES,
         line);
    struct device *device = &scene->devices[index][0];
    device->has_sensors = true;
    device->celsius = read.celsius;
    device->milliwatts = read.milliwatts;
    memcpy(device->ecc_errors, read.ecc_errors, sizeof device->ecc_errors);
}

static void parse_process(struct scene *scene, const char *line)
{
    static const char *const kinds[] = {"compute", "graphics", "mps"};
    char place[TEXT], kind[TEXT], used[TEXT];
    need(scene->process_count < PROCESSES, line);
    struct process *process = &scene->processes[scene->process_count++];
    process->kind = COMPUTE;
    need(sscanf(line, "process %255s %255s %u %255s", place, kind, &process->pid, used) == 4, line);
    process->place = parse_place(place, line);
    for (int number = 0; number < 3; number++)
        if (strcmp(kind, kinds[number]) == 0)
            process->kind = (enum process_kind)number;
    process->used = strcmp(used, "unavailable") == 0 ? UNAVAILABLE : strtoull(used, NULL, 10);
}

static void parse_sample(struct scene *scene, const char *line)
{
    char place[TEXT];
    need(scene->sample_count < SAMPLES, line);
    struct sample *sample = &scene->samples[scene->sample_count++];
    need(sscanf(line, "sample %255s %u %llu %u %u %u %u", place, &sample->pid, &sample->age_us,
                &sample->sm, &sample->memory, &sample->enc, &sample->dec) == 7,
         line);
    sample->place = parse_place(place, line);
}

static void parse_rule(struct scene *scene, const char *line, bool grow)
{
    need(scene->rule_count < RULES && strlen(line) < TEXT, line);
    struct rule *rule = &scene->rules[scene->rule_count++];
    char place[TEXT] = "*";
    rule->grow = grow;
    if (grow)
        need(sscanf(line, "grow %255s %d", rule->function, &rule->times) == 2, line);
    else
        need(sscanf(line, "error %255s %d %255s %d", rule->function, &rule->code, place,
                    &rule->times) >= 2,
             line);
    rule->everywhere = strcmp(place, "*") == 0;
    if (!rule->everywhere)
        rule->place = parse_place(place, line);
    snprintf(rule->line, sizeof rule->line, "%s", line);
}

static bool is(const char *line, const char *word)
{
    size_t length = strlen(word);
    return strncmp(line, word, length) == 0 && line[length] == ' ';
}

static void parse_line(struct scene *scene, const char *line)
{
    if (line[0] == '\0' || line[0] == '#')
        return;
    if (is(line, "driver"))
        snprintf(scene->driver, sizeof scene->driver, "%s", line + 7);
    else if (is(line, "device"))
        parse_device(scene, line);
    else if (is(line, "mode"))
        parse_mode(scene, line);
    else if (is(line, "mig"))
        parse_mig(scene, line);
    else if (is(line, "sensors"))
        parse_sensors(scene, line);
    else if (is(line, "process"))
        parse_process(scene, line);
    else if (is(line, "sample"))
        parse_sample(scene, line);
    else if (is(line, "error"))
        parse_rule(scene, line, false);
    else if (is(line, "grow"))
        parse_rule(scene, line, true);
    else if (strcmp(line, "quirk stale-samples") == 0)
        scene->stale_samples = true;
    else if (strcmp(line, "quirk slow-lists") == 0)
        scene->slow_lists = true;
    else if (strcmp(line, "quirk wide-lists") == 0)
        scene->wide_lists = true;
    else if (strcmp(line, "quirk blackwell") == 0)
        scene->is_blackwell = true;
    else if (strcmp(line, "quirk unknown-memory") == 0)
        scene->is_memory_unknown = true;
    else if (strcmp(line, "quirk private") == 0)
        scene->is_private = true;
    else
        reject(line);
}

/* Whether the file is the one that was read last: it is replaced, never written to. */
static bool is_known(FILE *file)
{
    static struct stat last;
    struct stat now;
    if (fstat(fileno(file), &now) != 0)
        return false;
    bool is_same = now.st_dev == last.st_dev && now.st_ino == last.st_ino &&
                   now.st_size == last.st_size && now.st_mtim.tv_sec == last.st_mtim.tv_sec &&
                   now.st_mtim.tv_nsec == last.st_mtim.tv_nsec;
    last = now;
    return is_same;
}

static bool read_file(struct scene *scene, const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    if (is_known(file)) {
        fclose(file);
        return true;
    }
    memset(scene, 0, offsetof(struct scene, processes));
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        parse_line(scene, line);
    }
    free(line);
    fclose(file);
    return true;
}

bool read_scene(struct scene *scene)
{
    const char *path = getenv("FAKE_NVML_STATE");
    bool is_live = getenv("FAKE_CUDA_STATE") != NULL;
    if (path == NULL ? !is_live : !read_file(scene, path))
        return false;
    return !is_live || show_live(scene);
}

static bool spend(const struct rule *rule)
{
    if (rule->times == 0)
        return true;
    const char *path = getenv("FAKE_NVML_STATE"); /* which the rule is from */
    char key[TEXT];
    /* The end of the path tells tests apart, the start is the same for all. */
    size_t length = strlen(path), kept = 100;
    const char *tail = length > kept ? path + length - kept : path;
    snprintf(key, sizeof key, "%.100s|%.150s", tail, rule->line);
    int at = 0;
    while (at < used_rule_count && strcmp(used_rules[at].key, key) != 0)
        at++;
    if (at == used_rule_count) {
        if (used_rule_count == (int)(sizeof used_rules / sizeof used_rules[0]))
            abort();
        memcpy(used_rules[used_rule_count++].key, key, sizeof key);
    }
    return used_rules[at].uses++ < rule->times;
}

int ruled(const struct scene *scene, const char *function, struct place place, bool grow)
{
    for (int number = 0; number < scene->rule_count; number++) {
        const struct rule *rule = &scene->rules[number];
        bool here = rule->everywhere ||
                    (rule->place.device == place.device && rule->place.slot == place.slot);
        if (rule->grow == grow && here && strcmp(rule->function, function) == 0 && spend(rule))
            return grow ? 1 : rule->code;
    }
    return 0;
}
