/* SPDX-License-Identifier: Apache-2.0 */

/* What a lab's hosts share is on NFS, says this to a libvirtd that it is loaded into.
 *
 * libvirt asks a file's file system whether another host sees the file too, and moves no guest whose disk is on any
 * other than those made for that, unless it is asked not to care. What the lab's hosts share is in truth one directory
 * of this machine, so that it is as good as its answer. Which directory that is, MIGRATOR_LAB_SHARED says.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#define NFS 0x6969

static int is_shared(const char *path)
{
    const char *shared = getenv("MIGRATOR_LAB_SHARED");
    size_t length = shared ? strlen(shared) : 0;
    return length && !strncmp(path, shared, length) && (path[length] == '/' || !path[length]);
}

/* Which of the two a program calls depends on how it was built. */

int statfs(const char *path, struct statfs *found)
{
    int (*real)(const char *, struct statfs *) = dlsym(RTLD_NEXT, "statfs");
    int failed = real(path, found);
    if (!failed && is_shared(path))
        found->f_type = NFS;
    return failed;
}

int statfs64(const char *path, struct statfs64 *found)
{
    int (*real)(const char *, struct statfs64 *) = dlsym(RTLD_NEXT, "statfs64");
    int failed = real(path, found);
    if (!failed && is_shared(path))
        found->f_type = NFS;
    return failed;
}
