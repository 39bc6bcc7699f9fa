/* SPDX-License-Identifier: Apache-2.0 */

/* A guest that exists to be moved: no disk, no operating system, no network.
 *
 * QEMU loads it itself (-kernel, multiboot), and it runs within a second, also where nothing accelerates it. It fills
 * its memory with noise, so that none of it is cheap to copy, and then lives in ticks of 10 ms: it rewrites as many
 * pages as it is asked to, looks whether each still holds what was last put there, says so on the serial port, and
 * halts until the next tick. What it says:
 *
 *     BOOT                                       it begins; a second one means that it was started anew
 *     T <tick> A <audits> P <pass> W <MiB> B <bad>
 *
 * tick: how long it has lived; audits: how often it has looked at all its pages; pass: how often it has rewritten all
 * of them; MiB: how much it has rewritten; bad: how many pages did not hold what they should have.
 *
 * On its command line: mem=MiB of noise, rate=MiB/s to rewrite, period=ticks from line to line, audit=ticks from one
 * look at all pages to the next (0: never), fill=0 for memory that is not touched before it is its turn.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

enum {
    HZ = 100,
    PAGES_PER_MIB = 256,
    WORDS = 1024,              /* of a page */
    FIRST = 2 << 20,           /* where the noise begins: above this program */
    MAGIC = 0x2BADB002,        /* in eax, if it was multiboot that loaded us */
    SERIAL = 0x3f8, PIC1 = 0x20, PIC2 = 0xa0, TIMER = 0x40,
    TIMER_VECTOR = 0x20,
};

/* The header has to be among the file's first 8 KiB, which is more than this file makes. */
__asm__(".text\n"
        ".balign 4\n"
        ".long 0x1BADB002, 0, -0x1BADB002\n"
        ".globl _start\n"
        "_start:\n"
        "    cli\n"
        "    movl $stack_end, %esp\n"
        "    pushl %ebx\n"
        "    pushl %eax\n"
        "    call live\n"
        ".globl on_timer\n"
        "on_timer:\n"
        "    incl ticks\n"
        "    pushl %eax\n"
        "    movb $0x20, %al\n"    /* end of interrupt */
        "    outb %al, $0x20\n"
        "    popl %eax\n"
        "    iretl\n"
        ".bss\n"
        ".balign 16\n"
        ".skip 4096\n"
        "stack_end:\n"
        ".text\n");

extern void on_timer(void);
volatile u32 ticks;

static void out(u16 port, u8 value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

static u8 in(u16 port)
{
    u8 value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

/* --- what it says ----------------------------------------------------------------------------------------------- */

static void say(const char *text)
{
    for (; *text; text++) {
        while (!(in(SERIAL + 5) & 0x20))
            ;
        out(SERIAL, *text);
    }
}

static void say_number(const char *label, u32 number)
{
    char digits[11], *at = digits + 10;
    *at = 0;
    do
        *--at = '0' + number % 10;
    while (number /= 10);
    say(label);
    say(at);
}

/* --- its command line -------------------------------------------------------------------------------------------- */

static u32 told(const char *line, const char *key, u32 otherwise)
{
    for (const char *word = line; *word; word++) {
        const char *at = word, *wanted = key;
        if (word != line && word[-1] != ' ')
            continue;
        while (*wanted && *at == *wanted)
            at++, wanted++;
        if (*wanted || *at != '=')
            continue;
        u32 number = 0;
        while (*++at >= '0' && *at <= '9')
            number = number * 10 + (*at - '0');
        return number;
    }
    return otherwise;
}

/* --- its clock --------------------------------------------------------------------------------------------------- */

struct table { u16 limit; u32 base; } __attribute__((packed));

static void start_clock(void)
{
    /* code and data, each all of the memory: the loader's own table need not be there any more */
    static const u32 segments[6] = {0, 0, 0x0000ffff, 0x00cf9a00, 0x0000ffff, 0x00cf9200};
    static u32 gates[2 * (TIMER_VECTOR + 1)];
    struct table gdt = {sizeof segments - 1, (u32)segments}, idt = {sizeof gates - 1, (u32)gates};
    u32 entry = (u32)on_timer, divisor = 1193182 / HZ;

    __asm__ volatile("lgdt %0\n ljmp $8, $1f\n 1: movw $16, %%ax\n movw %%ax, %%ds\n movw %%ax, %%es\n movw %%ax, %%ss"
                     : : "m"(gdt) : "eax", "memory");
    gates[2 * TIMER_VECTOR] = 8 << 16 | (entry & 0xffff);
    gates[2 * TIMER_VECTOR + 1] = (entry & 0xffff0000) | 0x8e00;
    __asm__ volatile("lidt %0" : : "m"(idt), "m"(gates));
    /* both controllers: begin, first vector, how they are joined, 8086 mode, and which lines are masked */
    out(PIC1, 0x11), out(PIC1 + 1, TIMER_VECTOR), out(PIC1 + 1, 4), out(PIC1 + 1, 1), out(PIC1 + 1, 0xfe);
    out(PIC2, 0x11), out(PIC2 + 1, TIMER_VECTOR + 8), out(PIC2 + 1, 2), out(PIC2 + 1, 1), out(PIC2 + 1, 0xff);
    out(TIMER + 3, 0x34), out(TIMER, divisor & 0xff), out(TIMER, divisor >> 8);
    __asm__ volatile("sti");
}

static u32 wait_for_tick(u32 seen)
{
    /* nothing interrupts between sti and hlt, so that no tick is slept through */
    __asm__ volatile("cli");
    if (ticks == seen)
        __asm__ volatile("sti\n hlt" : : : "memory");
    else
        __asm__ volatile("sti" : : : "memory");
    return ticks;
}

/* --- its memory: a page's first word is its round, its last one is of that page and that round only --------------- */

static volatile u32 *page(u32 index) { return (volatile u32 *)(FIRST + index * 4096); }

static void put(u32 index, u32 round)
{
    page(index)[0] = round;
    page(index)[WORDS - 1] = round * 0x9e3779b1u ^ index;
}

static u32 lost(u32 index, u32 round)
{
    return page(index)[0] != round || page(index)[WORDS - 1] != (round * 0x9e3779b1u ^ index);
}

void live(u32 magic, const u32 *loaded)
{
    const char *line = magic == MAGIC && loaded[0] & 4 ? (const char *)loaded[4] : "";
    u32 pages = told(line, "mem", 16) * PAGES_PER_MIB, rate = told(line, "rate", 0);
    u32 period = told(line, "period", 10), audit = told(line, "audit", HZ);
    u32 there = magic == MAGIC && loaded[0] & 1 ? (loaded[2] - 1024) / 4 : pages; /* from KiB above the first MiB */

    out(SERIAL + 1, 0), out(SERIAL + 3, 3); /* no interrupts; eight bits */
    say("BOOT\n");
    if (pages > there)
        pages = there;
    u32 noise = 2463534242u, fill = told(line, "fill", 1);
    for (u32 i = 0; i < pages; i++) {
        for (u32 j = 1; fill && j < WORDS - 1; j++) {
            noise ^= noise << 13, noise ^= noise >> 17, noise ^= noise << 5;
            page(i)[j] = noise;
        }
        put(i, 1);
    }
    start_clock();

    u32 seen = 0, due = 0, written = 0, next = 0, pass = 1, bad = 0, audits = 0, next_line = 0, next_audit = audit;
    for (;;) {
        u32 now = wait_for_tick(seen), passed = now - seen;
        seen = now;
        /* what could not be done in time is not made up for, or a slow machine would never be done */
        due += (passed < 20 ? passed : 20) * rate * PAGES_PER_MIB;
        for (; due >= HZ; due -= HZ) {
            bad += lost(next, pass);
            put(next, pass + 1);
            written++;
            if (++next == pages)
                next = 0, pass++;
        }
        if (audit && now >= next_audit) {
            next_audit = now + audit;
            for (u32 i = 0; i < pages; i++)
                if (lost(i, pass + (i < next))) {
                    bad++;
                    put(i, pass + (i < next)); /* so that each loss is counted once */
                }
            audits++;
        }
        if (now >= next_line) {
            next_line = now + period;
            say_number("T ", now), say_number(" A ", audits), say_number(" P ", pass);
            say_number(" W ", written / PAGES_PER_MIB), say_number(" B ", bad);
            say("\n");
        }
    }
}
