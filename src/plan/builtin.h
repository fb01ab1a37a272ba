/* builtin.h - the machine files of machines/, which the build puts into the library (CMakeLists.txt makes the source). */
#ifndef LS_PLAN_BUILTIN_H
#define LS_PLAN_BUILTIN_H

struct builtin_machine {
    const char *name; /* the file's name without .yaml */
    const char *text;
};
extern const struct builtin_machine builtin_machine[];
extern const int builtin_machines;

#endif
