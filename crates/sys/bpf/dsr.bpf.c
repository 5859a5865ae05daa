// Direct server return in the kernel: the decision of crates/logic/src/dsr.rs about one frame, for one service (a virtual
// address with a port, or with every port). Built twice, for XDP (-DXDP) and for tc; crates/sys/bpf/build.sh has the flags, and
// crates/logic/src/dsr/image.rs writes what the maps say.
//
// What is not exactly for the service goes on to the kernel. The program reads headers by helper functions, which check
// every length, also of frames in several parts.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) typeof(type) *name
// Keeps the compiler from using what it knows of a value that the verifier does not know.
#define FORGET(value) asm volatile("" : "+r"(value))

// linux/bpf.h
enum { MAP_ARRAY = 2, MAP_LRU_HASH = 9, MMAPABLE = 1 << 10 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u32 (*processor)(void) = (void *)8;
static u64 (*now_coarse)(void) = (void *)160;

#ifdef XDP
// The first words of it. The verifier knows by its name what a function gets.
#define FRAME xdp_md
struct FRAME {
	u32 data, data_end, data_meta, ingress_ifindex;
};
enum { DROP = 1, PASS = 2, TRANSMIT = 3, LEAVE = PASS };
static long (*adjust_head)(struct FRAME *frame, int by) = (void *)44;
static long (*adjust_tail)(struct FRAME *frame, int by) = (void *)65;
static u64 (*length_of)(struct FRAME *frame) = (void *)188;
static long (*load_bytes)(struct FRAME *frame, u32 at, void *to, u32 length) = (void *)189;
static long (*store_bytes)(struct FRAME *frame, u32 at, const void *from, u32 length) = (void *)190;
#else
// The first words of it.
#define FRAME __sk_buff
struct FRAME {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex, ifindex;
	u32 others[33];
	u32 gso_size;
};
enum { DROP = 2, PASS = -1, LEAVE = DROP };
// Behind the Ethernet header; segments keep their length; what the outer header is.
enum { AT_MAC = 1, FIXED_GSO = 1, OUTER_IPV4 = 2, OUTER_IPV6 = 4 };
static long (*adjust_room)(struct FRAME *frame, int by, u32 mode, u64 flags) = (void *)50;
static long (*skb_store_bytes)(struct FRAME *frame, u32 at, const void *from, u32 length, u64 flags) = (void *)9;
static long (*redirect)(u32 interface, u64 flags) = (void *)23;
static long (*load_bytes)(struct FRAME *frame, u32 at, void *to, u32 length) = (void *)26;
static long (*change_tail)(struct FRAME *frame, u32 length, u64 flags) = (void *)38;
#endif

enum { SLOTS = 65537, BACKENDS = 4096, ID_SLOTS = 32768, ID_TRIES = 16, NO_BACKEND = 0xffff, MOST_EXTENSIONS = 8 };
enum { ETHERNET = 14 };
enum { ICMP = 1, TCP = 6, UDP = 17, ICMPV6 = 58 };
enum { IPV4_INSIDE = 4, IPV6_INSIDE = 41, HOPS = 64 };
enum { WHOLE, FIRST, LATER };
enum { CLASS_TCP, CLASS_CLOSING, CLASS_UDP };
enum { OPEN, DRAINING, DOWN };
// A decision: the frame may be a question who has the address.
enum { ASKS = 100 };
enum { SOLICITATION = 135, ADVERTISEMENT = 136 };

// What the service forwards. Times are nanoseconds; addresses are as in the packet, IPv4 as ::ffff:a.b.c.d.
struct service {
	u32 ring;
	u32 is_on;
	u64 vip[2];
	// 0: every port but those of other services.
	u16 port;
	u8 has_tcp, has_udp;
	u8 version;
	// Place of the number of a server in connection ids of QUIC. Length 0: they are not looked at.
	u8 id_offset, id_length;
	u8 unused;
	u64 key[2];
	u64 tcp_idle, udp_idle, closing;
	u8 own[6];
	// Longest packet that fits into a tunnel to a backend. 0: packets are sent as they are.
	u16 room;
	u64 fragments_wait;
	u32 new_flows;
	// When this program answers questions who has the address itself, as the process does not put it off any more: 2^28
	// nanoseconds of its clock. 0: never.
	u32 answers_after;
};

struct backend {
	u8 mac[6];
	u8 standing;
	u8 is_known;
	u32 turn;
	u32 unused;
	u64 name;
	// Ends of the tunnel to it.
	u64 from[2], to[2];
};

// For each slot the backend of new flows, and the one that follows once all Ethernet addresses are known.
struct ring {
	struct {
		u16 now, later;
	} slots[SLOTS];
};

// Servers by their numbers in connection ids; `backend` is one more than the number of the backend.
struct ids {
	struct {
		u64 id, backend;
	} slots[ID_SLOTS];
};

// Of one processor, which alone writes it.
struct counters {
	u64 forwarded, bytes, began, passed, no_backend, since, count, not_segmented;
};

struct tally {
	u64 packets, bytes, began, unused;
};

struct flow {
	u64 client[2];
	u16 port;
	u8 transport;
	u8 unused;
	// Port of the service; 0 if it has one port.
	u16 to;
	u16 further;
};

struct known {
	u16 backend;
	u8 class;
	u8 unused;
	u32 turn;
	u64 seen;
};

// A bit for each port, in the order of the machine, that another service of the same address has.
struct taken {
	u64 tcp[1024], udp[1024];
};

struct fragment {
	u64 from[2], to[2];
	u32 id;
	u8 protocol;
	u8 unused[3];
};

struct held {
	u16 backend;
	u16 unused;
	u32 turn;
	u64 since;
};

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct service);
} service SECTION(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 2);
	UINT(map_flags, MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct ring);
} rings SECTION(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, BACKENDS);
	UINT(map_flags, MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct backend);
} backends SECTION(".maps");

// The loader sets the numbers of entries of the others.
struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct counters);
} counters SECTION(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, BACKENDS);
	UINT(map_flags, MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct tally);
} tallies SECTION(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1);
	UINT(map_flags, MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct taken);
} taken SECTION(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 2);
	UINT(map_flags, MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct ids);
} ids SECTION(".maps");

struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 4096);
	TYPE(key, struct flow);
	TYPE(value, struct known);
} flows SECTION(".maps");

struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 16384);
	TYPE(key, struct fragment);
	TYPE(value, struct held);
} fragments SECTION(".maps");

// An IP packet whose headers were read. `at` and `end` bound its payload.
struct packet {
	u64 from[2], to[2];
	u32 at, end, id;
	// Headers of a segment, from that of IP on.
	u32 head;
	u8 protocol, part, class;
};

INLINE u16 swap16(u16 value) { return __builtin_bswap16(value); }

INLINE void mapped(u64 to[2], u32 address)
{
	to[0] = 0;
	to[1] = (u64)address << 32 | 0xffff0000;
}

INLINE int is_same(const u64 *one, const u64 *other) { return one[0] == other[0] && one[1] == other[1]; }

INLINE u8 part_of(int is_at_start, int has_more)
{
	return !is_at_start ? LATER : has_more ? FIRST : WHOLE;
}

struct ipv4 {
	u8 first, service;
	u16 total, id, fragment;
	u8 hops, protocol;
	u16 checksum;
	u32 from, to;
};

// Reads the packet whose header is at `at`, in what ends at `length`. Returns 0 if it is well-formed.
INLINE int read_ipv4(struct FRAME *frame, u32 at, u32 length, struct packet *packet)
{
	struct ipv4 head;
	if (load_bytes(frame, at, &head, sizeof head))
		return -1;
	u32 header = (head.first & 15) * 4, total = swap16(head.total);
	if (head.first >> 4 != 4 || header < 20 || at + header > length)
		return -1;
	// A packet that the kernel has put together may be longer than the field can say.
	u32 end = total && at + total < length ? at + total : length;
	if (end < at + header)
		return -1;
	u16 fragment = swap16(head.fragment);
	mapped(packet->from, head.from);
	mapped(packet->to, head.to);
	packet->at = at + header;
	packet->end = end;
	packet->head = 0;
	packet->class = head.service;
	packet->id = swap16(head.id);
	packet->protocol = head.protocol;
	packet->part = part_of((fragment & 0x1fff) == 0, fragment & 0x2000);
	return 0;
}

struct ipv6 {
	u8 first, second, unused[2];
	u16 length;
	u8 next, hops;
	u64 from[2], to[2];
};

INLINE int read_ipv6(struct FRAME *frame, u32 at, u32 length, struct packet *packet)
{
	struct ipv6 head;
	if (at + sizeof head > length || load_bytes(frame, at, &head, sizeof head) || head.first >> 4 != 6)
		return -1;
	u32 payload = swap16(head.length);
	u32 end = payload && at + 40 + payload < length ? at + 40 + payload : length;
	packet->from[0] = head.from[0];
	packet->from[1] = head.from[1];
	packet->to[0] = head.to[0];
	packet->to[1] = head.to[1];
	packet->part = WHOLE;
	packet->id = 0;
	packet->protocol = head.next;
	packet->end = end;
	packet->head = 0;
	packet->class = head.first << 4 | head.second >> 4;
	at += sizeof head;
	for (int n = 0; n < MOST_EXTENSIONS; n++) {
		struct {
			u8 next, length;
			u16 place;
			u32 id;
		} extension;
		u8 kind = packet->protocol;
		if (at > end)
			return -1;
		if (kind == 44) {
			if (at + 8 > end || load_bytes(frame, at, &extension, 8))
				return -1;
			u16 place = swap16(extension.place);
			packet->part = part_of((place & 0xfff8) == 0, place & 1);
			packet->id = __builtin_bswap32(extension.id);
			at += 8;
		} else if (kind == 0 || kind == 43 || kind == 51 || kind == 60) {
			if (at + 2 > end || load_bytes(frame, at, &extension, 2))
				return -1;
			// Authentication counts words of four bytes.
			at += kind == 51 ? 4 * (extension.length + 2) : 8 * (extension.length + 1);
		} else {
			break;
		}
		packet->protocol = extension.next;
		if (packet->part == LATER)
			break;
	}
	if (at > end)
		return -1;
	packet->at = at;
	return 0;
}

#define TURN(word, bits) (word << bits | word >> (64 - bits))
#define ROUND                                                                                                       \
	do {                                                                                                        \
		a += b; b = TURN(b, 13); b ^= a; a = TURN(a, 32);                                                   \
		c += d; d = TURN(d, 16); d ^= c;                                                                    \
		a += d; d = TURN(d, 21); d ^= a;                                                                    \
		c += b; b = TURN(b, 17); b ^= c; c = TURN(c, 32);                                                   \
	} while (0)

// SipHash-2-4 of addresses, ports and transport, as crates/logic/src/dsr/ring.rs has it.
INLINE u64 hash_of(const struct service *of, const struct flow *flow)
{
	u64 words[5] = {
		flow->client[0],
		flow->client[1],
		flow->port | of->vip[0] << 16,
		of->vip[0] >> 48 | of->vip[1] << 16,
		of->vip[1] >> 48 | (u64)(of->port | flow->to) << 16 | (u64)flow->transport << 32 | 37ULL << 56,
	};
	u64 a = of->key[0] ^ 0x736f6d6570736575ULL, b = of->key[1] ^ 0x646f72616e646f6dULL;
	u64 c = of->key[0] ^ 0x6c7967656e657261ULL, d = of->key[1] ^ 0x7465646279746573ULL;
#pragma unroll
	for (int n = 0; n < 5; n++) {
		d ^= words[n];
		ROUND;
		ROUND;
		a ^= words[n];
	}
	c ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	ROUND;
	return a ^ b ^ c ^ d;
}

INLINE u64 mix(u64 x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ULL;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ULL;
	return x ^ x >> 32;
}

struct choice {
	u16 backend;
	u16 stands_in;
};

INLINE struct choice choose(const struct service *of, const struct flow *flow)
{
	struct choice choice = {NO_BACKEND, 0};
	u32 which = of->ring & 1;
	struct ring *ring = map_lookup(&rings, &which);
	u64 slot = mix(hash_of(of, flow)) % SLOTS;
	FORGET(slot);
	if (!ring || slot >= SLOTS)
		return choice;
	choice.backend = ring->slots[slot].now;
	choice.stands_in = ring->slots[slot].later != choice.backend;
	return choice;
}

INLINE struct backend *backend_of(u16 number)
{
	u32 key = number;
	return map_lookup(&backends, &key);
}

// Another processor may have written a time that is a little later than `now`.
INLINE u64 age(u64 time, u64 now) { return time < now ? now - time : 0; }

// The backend of a remembered flow, if it still takes its packets.
INLINE struct known *remembered(const struct service *of, const struct flow *flow, u64 now)
{
	struct known *known = map_lookup(&flows, flow);
	if (!known)
		return 0;
	u64 idle = known->class == CLASS_UDP ? of->udp_idle : known->class == CLASS_TCP ? of->tcp_idle : of->closing;
	struct backend *backend = backend_of(known->backend);
	if (!backend || backend->turn != known->turn || backend->standing == DOWN || age(known->seen, now) >= idle)
		return 0;
	return known;
}

INLINE void remember(const struct service *of, struct counters *own, const struct flow *flow, u16 number, u8 class, u64 now)
{
	struct backend *backend = backend_of(number);
	if (!backend)
		return;
	if (now - own->since >= 1000000000) {
		own->since = now;
		own->count = 0;
	}
	if (own->count >= of->new_flows)
		return;
	own->count++;
	struct known known = {.backend = number, .class = class, .turn = backend->turn, .seen = now};
	map_update(&flows, flow, &known, 0);
}

INLINE int store(struct FRAME *frame, u32 at, const void *from, u32 length)
{
#ifdef XDP
	return store_bytes(frame, at, from, length) ? -1 : 0;
#else
	return skb_store_bytes(frame, at, from, length, 0) ? -1 : 0;
#endif
}

// Whether the packet does not fit into a tunnel. The kernel cuts one with many segments.
INLINE int is_too_long(const struct FRAME *frame, const struct service *of, const struct packet *packet)
{
#ifdef XDP
	(void)frame;
#else
	if (frame->gso_size)
		return 0;
#endif
	return of->room && packet->end - ETHERNET > of->room;
}

INLINE u16 checksum_of(const struct ipv4 *head)
{
	// Words as they are in the packet, on a machine that has the low byte first.
	u32 sum = head->first + (head->service << 8) + head->total + head->id + head->fragment + head->hops +
		  (head->protocol << 8) + (head->from & 0xffff) + (head->from >> 16) + (head->to & 0xffff) + (head->to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

// Cuts off what fills up a short frame: in a tunnel the frame ends where the packet does.
INLINE int cut_padding(struct FRAME *frame, u32 length, const struct packet *packet)
{
	if (packet->end >= length)
		return 0;
#ifdef XDP
	return adjust_tail(frame, (int)packet->end - (int)length) ? -1 : 0;
#else
	// A frame with many segments is not filled up.
	return frame->gso_size == 0 && change_tail(frame, packet->end, 0) ? -1 : 0;
#endif
}

// Makes room for an outer header behind that of Ethernet, which is lost.
INLINE int make_room(struct FRAME *frame, const struct service *of, const struct packet *packet, int size)
{
#ifdef XDP
	(void)of;
	(void)packet;
	return adjust_head(frame, -size) ? -1 : 0;
#else
	u64 flags = size == sizeof(struct ipv4) ? OUTER_IPV4 : OUTER_IPV6;
	if (frame->gso_size) {
		// Segments of TCP become shorter if they do not fit.
		if (packet->head + frame->gso_size <= of->room)
			flags |= FIXED_GSO;
		else if (packet->protocol != TCP)
			return -1;
	}
	return adjust_room(frame, size, AT_MAC, flags) ? -1 : 0;
#endif
}

// Puts the packet into another one, to the backend.
INLINE int enter_tunnel(
	struct FRAME *frame, const struct service *of, const struct backend *backend, const struct packet *packet)
{
	u32 length = packet->end - ETHERNET;
	if (of->version == 4) {
		struct ipv4 outer = {
			.first = 0x45,
			.service = packet->class,
			.total = swap16(length + sizeof outer),
			.fragment = swap16(0x4000),
			.hops = HOPS,
			.protocol = IPV4_INSIDE,
			.from = backend->from[1] >> 32,
			.to = backend->to[1] >> 32,
		};
		if (length + sizeof outer > 0xffff)
			return -1;
		outer.checksum = checksum_of(&outer);
		u16 type = swap16(0x0800);
		return make_room(frame, of, packet, sizeof outer) || store(frame, 12, &type, 2) ||
		       store(frame, ETHERNET, &outer, sizeof outer);
	}
	struct ipv6 outer = {
		.first = 0x60 | packet->class >> 4,
		.second = packet->class << 4,
		.length = swap16(length),
		.next = IPV6_INSIDE,
		.hops = HOPS,
		.from = {backend->from[0], backend->from[1]},
		.to = {backend->to[0], backend->to[1]},
	};
	if (length > 0xffff)
		return -1;
	u16 type = swap16(0x86dd);
	return make_room(frame, of, packet, sizeof outer) || store(frame, 12, &type, 2) ||
	       store(frame, ETHERNET, &outer, sizeof outer);
}

INLINE int send(struct FRAME *frame, const struct service *of, const struct backend *backend)
{
	u8 addresses[12];
#pragma unroll
	for (int n = 0; n < 6; n++) {
		addresses[n] = backend->mac[n];
		addresses[n + 6] = of->own[n];
	}
	if (store(frame, 0, addresses, sizeof addresses))
		return DROP;
#ifdef XDP
	return TRANSMIT;
#else
	return redirect(frame->ifindex, 0);
#endif
}

INLINE int to_backend(
	struct FRAME *frame, u32 length, const struct service *of, struct counters *own, const struct packet *packet, u16 number,
	int began)
{
	struct backend *backend = number == NO_BACKEND ? 0 : backend_of(number);
	if (!backend || !backend->is_known) {
		own->no_backend++;
		return DROP;
	}
	// The process tells the client. Its socket sees a frame before this program does in tc, and only what XDP passes.
	if (is_too_long(frame, of, packet))
		return LEAVE;
	if (of->room && (cut_padding(frame, length, packet) || enter_tunnel(frame, of, backend, packet))) {
		own->not_segmented++;
		return DROP;
	}
	u32 key = processor() * BACKENDS + number;
	struct tally *tally = map_lookup(&tallies, &key);
	if (tally) {
		tally->packets += 1;
		tally->bytes += length;
		tally->began += began;
	}
	own->forwarded++;
	own->bytes += length;
	own->began += began;
	return send(frame, of, backend);
}

// The backend whose number is in the connection id of a QUIC packet between `at` and `end`, if it takes packets of its flows.
// A client makes up the id of Initial and 0-RTT packets, and other long headers than those of Handshake packets of versions 1
// and 2 are not known. A function of its own, because the verifier looks at it once.
__attribute__((noinline)) int named(struct FRAME *frame, u32 at, u32 end, u32 place, u32 which)
{
	u8 head[6];
	u32 offset = place & 31, length = place >> 8 & 15;
	if (at + 1 > end || load_bytes(frame, at, head, 1))
		return NO_BACKEND;
	if (head[0] & 0x80) {
		if (at + sizeof head > end || load_bytes(frame, at, head, sizeof head))
			return NO_BACKEND;
		u32 version = head[1] << 24 | head[2] << 16 | head[3] << 8 | head[4], kind = head[0] >> 4 & 3;
		int is_of_server = (version == 1 && kind == 2) || (version == 0x6b3343cf && kind == 3);
		if (!is_of_server || head[5] < offset + length)
			return NO_BACKEND;
		at += sizeof head;
	} else {
		at += 1;
	}
	at += offset;
	u64 id = 0;
	FORGET(length);
	if (at + length > end || length < 1 || length > sizeof id || load_bytes(frame, at, &id, length))
		return NO_BACKEND;
	which &= 1;
	struct ids *table = map_lookup(&ids, &which);
	if (!table)
		return NO_BACKEND;
	u64 first = mix(id), found = 0;
	for (int n = 0; n < ID_TRIES; n++) {
		u64 slot = (first + n) % ID_SLOTS;
		FORGET(slot);
		if (slot >= ID_SLOTS || !table->slots[slot].backend)
			break;
		if (table->slots[slot].id == id) {
			found = table->slots[slot].backend;
			break;
		}
	}
	struct backend *backend = found ? backend_of(found - 1) : 0;
	return backend && backend->standing != DOWN ? (int)(found - 1) : NO_BACKEND;
}

INLINE int forward(
	struct FRAME *frame, u32 length, const struct service *of, struct counters *own, const struct packet *packet,
	const struct flow *flow, int begins, int ends, u64 now)
{
	u8 class = flow->transport == UDP ? CLASS_UDP : ends ? CLASS_CLOSING : CLASS_TCP;
	u16 name = NO_BACKEND;
	if (flow->transport == UDP && of->id_length)
		name = named(frame, packet->at + 8, packet->end, of->id_offset | of->id_length << 8, of->ring);
	struct known *known = remembered(of, flow, now);
	u16 number;
	int began = 0;
	// The client uses a port again whose connection has ended, or for another server.
	if (known && !(begins && known->class == CLASS_CLOSING) && (name == NO_BACKEND || name == known->backend)) {
		number = known->backend;
		if (known->class != CLASS_CLOSING)
			known->class = class;
		known->seen = now;
	} else {
		map_delete(&flows, flow);
		struct choice choice = {name, 0};
		if (name == NO_BACKEND)
			choice = choose(of, flow);
		number = choice.backend;
		if (number == NO_BACKEND) {
			own->no_backend++;
			return DROP;
		}
		// A flow that goes on belongs to another backend, perhaps, whose Ethernet address is not known yet.
		if (!ends && (begins || !choice.stands_in))
			remember(of, own, flow, number, class, now);
		began = begins;
	}
	if (packet->part == FIRST) {
		struct backend *backend = backend_of(number);
		struct fragment fragment = {
			.from = {packet->from[0], packet->from[1]},
			.to = {packet->to[0], packet->to[1]},
			.id = packet->id,
			// The identification of IPv6 alone tells packets apart.
			.protocol = of->version == 4 ? packet->protocol : 0,
		};
		struct held held = {.backend = number, .turn = backend ? backend->turn : 0, .since = now};
		map_update(&fragments, &fragment, &held, 0);
	}
	return to_backend(frame, length, of, own, packet, number, began);
}

INLINE int later_fragment(
	struct FRAME *frame, u32 length, const struct service *of, struct counters *own, const struct packet *packet, u64 now)
{
	struct fragment fragment = {
		.from = {packet->from[0], packet->from[1]},
		.to = {packet->to[0], packet->to[1]},
		.id = packet->id,
		.protocol = of->version == 4 ? packet->protocol : 0,
	};
	struct held *held = map_lookup(&fragments, &fragment);
	struct backend *backend = held ? backend_of(held->backend) : 0;
	// Each service of the address sees it.
	if (!held || !backend || backend->turn != held->turn || backend->standing == DOWN ||
	    age(held->since, now) >= of->fragments_wait) {
		own->passed++;
		return PASS;
	}
	return to_backend(frame, length, of, own, packet, held->backend, 0);
}

INLINE int has_transport(const struct service *of, u8 protocol)
{
	return (protocol == TCP && of->has_tcp) || (protocol == UDP && of->has_udp);
}

// Whether the service has a port, which is as in the packet.
INLINE int has_port(const struct service *of, u8 protocol, u16 port)
{
	if (!has_transport(of, protocol))
		return 0;
	if (of->port)
		return port == of->port;
	u32 zero = 0, at = swap16(port);
	struct taken *others = map_lookup(&taken, &zero);
	if (!others)
		return 0;
	u64 word = protocol == TCP ? others->tcp[at >> 6] : others->udp[at >> 6];
	return !(word >> (at & 63) & 1);
}

// An ICMP error that is about a packet of the service: the flow of that one.
INLINE int error_flow(struct FRAME *frame, const struct service *of, const struct packet *packet, struct flow *flow)
{
	struct packet inner;
	u16 ports[2];
	u8 kind;
	if (packet->at + 8 > packet->end || load_bytes(frame, packet->at, &kind, 1))
		return -1;
	if (of->version == 4) {
		if (packet->protocol != ICMP || (kind != 3 && kind != 11 && kind != 12) ||
		    read_ipv4(frame, packet->at + 8, packet->end, &inner))
			return -1;
	} else if (packet->protocol != ICMPV6 || kind < 1 || kind > 4 ||
		   read_ipv6(frame, packet->at + 8, packet->end, &inner)) {
		return -1;
	}
	if (!is_same(inner.from, of->vip) || inner.part == LATER || !has_transport(of, inner.protocol) ||
	    inner.at + 4 > inner.end || load_bytes(frame, inner.at, ports, 4) || !has_port(of, inner.protocol, ports[0]))
		return -1;
	flow->client[0] = inner.to[0];
	flow->client[1] = inner.to[1];
	flow->port = ports[1];
	flow->transport = inner.protocol;
	flow->to = of->port ? 0 : ports[0];
	return 0;
}

struct ethernet {
	u16 to[3], from[3], type;
};

INLINE int is_mac(const u16 *one, const u16 *other)
{
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2];
}

#include "answers.bpf.h"

INLINE int decide(struct FRAME *frame, u32 length)
{
	struct ethernet ethernet;
	u32 zero = 0, cpu = processor();
	struct service *of = map_lookup(&service, &zero);
	struct counters *own = map_lookup(&counters, &cpu);
	if (!of || !own || !of->is_on || load_bytes(frame, 0, &ethernet, sizeof ethernet))
		return PASS;
	const u16 *mac = (const u16 *)of->own;
	// To this machine, or to a group.
	if (!is_mac(ethernet.to, mac))
		return ethernet.to[0] & 1 ? ASKS : PASS;
	// It would go round for ever.
	if (is_mac(ethernet.from, mac))
		return PASS;
	struct packet packet;
	if (of->version == 4) {
		if (ethernet.type != swap16(0x0800) || read_ipv4(frame, sizeof ethernet, length, &packet))
			return ASKS;
	} else {
		if (ethernet.type != swap16(0x86dd) || read_ipv6(frame, sizeof ethernet, length, &packet))
			return PASS;
	}
	// A question may be to a group.
	if (!is_same(packet.to, of->vip))
		return packet.protocol == ICMPV6 ? ASKS : PASS;
	u64 now = now_coarse();
	if (packet.part == LATER)
		return later_fragment(frame, length, of, own, &packet, now);
	struct flow flow = {};
	if (packet.protocol == TCP || packet.protocol == UDP) {
		struct {
			u16 from, to;
			u32 sequence, acknowledgement;
			u8 offset, flags;
			u16 window;
		} segment = {};
		long missing = packet.protocol == TCP
			? packet.at + 14 > packet.end || load_bytes(frame, packet.at, &segment, 14)
			: packet.at + 4 > packet.end || load_bytes(frame, packet.at, &segment, 4);
		if (missing || !has_port(of, packet.protocol, segment.to)) {
			own->passed++;
			return PASS;
		}
		packet.head = packet.at - ETHERNET + (packet.protocol == TCP ? (segment.offset >> 4) * 4 : 8);
		flow.client[0] = packet.from[0];
		flow.client[1] = packet.from[1];
		flow.port = segment.from;
		flow.transport = packet.protocol;
		flow.to = of->port ? 0 : segment.to;
		// A SYN, or any datagram; FIN or RST.
		int begins = packet.protocol == UDP || (segment.flags & 0x12) == 0x02;
		int ends = packet.protocol == TCP && (segment.flags & 0x05);
		return forward(frame, length, of, own, &packet, &flow, begins, ends, now);
	}
	if (error_flow(frame, of, &packet, &flow)) {
		own->passed++;
		return ASKS;
	}
	// The table has no flow of a reply that the error is about: it was sent straight to the client.
	struct known *known = remembered(of, &flow, now);
	u16 number = known ? known->backend : choose(of, &flow).backend;
	return to_backend(frame, length, of, own, &packet, number, 0);
}

INLINE int act(struct FRAME *frame, u32 length)
{
	int verdict = decide(frame, length);
	return verdict == ASKS ? answer(frame, length) : verdict;
}

#ifdef XDP
SECTION("xdp.frags") int penstock_dsr(struct FRAME *frame) { return act(frame, length_of(frame)); }
#else
SECTION("classifier") int penstock_dsr(struct FRAME *frame)
{
	// The network card has cut off the tag of a VLAN, which has an interface of its own.
	// A tag without a VLAN has a priority alone.
	return frame->vlan_present && (frame->vlan_tci & 0xfff) ? PASS : act(frame, frame->len);
}
#endif

char licence[] SECTION("license") = "Dual BSD/GPL";
