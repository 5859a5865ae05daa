// Takes packets out of those that they travel in, as a tunnel device of the kernel does (ipip, ip6tnl): for test machines
// whose kernel has no such device. A filter of tc where packets come in.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))

static long (*load_bytes)(void *frame, u32 at, void *to, u32 length) = (void *)26;
static long (*adjust_room)(void *frame, int by, u32 mode, u64 flags) = (void *)50;

// linux/bpf.h: behind the Ethernet header; segments keep their length; what the outer header is.
enum { AT_MAC = 1, FIXED_GSO = 1, OUTER_IPV4 = 1 << 7, OUTER_IPV6 = 1 << 8 };
enum { DROP = 2, PASS = -1 };

SECTION("classifier") int decapsulate(void *frame)
{
	struct {
		u16 type;
		u8 first[24];
	} head;
	if (load_bytes(frame, 12, &head, sizeof head))
		return PASS;
	if (head.type == __builtin_bswap16(0x0800) && head.first[0] == 0x45 && head.first[9] == 4)
		return adjust_room(frame, -20, AT_MAC, FIXED_GSO | OUTER_IPV4) ? DROP : PASS;
	if (head.type == __builtin_bswap16(0x86dd) && head.first[6] == 41)
		return adjust_room(frame, -40, AT_MAC, FIXED_GSO | OUTER_IPV6) ? DROP : PASS;
	return PASS;
}

char licence[] SECTION("license") = "Dual BSD/GPL";
