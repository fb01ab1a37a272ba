/* module.h - finds modules: shared objects that are loaded when they are used. */
#ifndef LS_BASE_MODULE_H
#define LS_BASE_MODULE_H

#include <stdbool.h>
#include <stddef.h>

/* The path of lockstep_NAME.so in path[room]; false: it is in none of these folders, in this order:
 *     the folder of the executable, and MODULE_FOLDER (lib/x86_64-linux-gnu/lockstep) beside that folder
 *     the folder of this library, and lockstep/ in it */
bool module_find(const char *name, char *path, size_t room);
/* "/usr/bin nor in /usr/bin/../lib/lockstep": those folders, for messages. */
const char *module_folders(char *out, size_t room);

#endif
