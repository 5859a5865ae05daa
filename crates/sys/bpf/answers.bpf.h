// Answers to questions who has the virtual address, which the program gives while no process does. Included by dsr.bpf.c.

INLINE int send_back(struct FRAME *frame)
{
#ifdef XDP
	(void)frame;
	return TRANSMIT;
#else
	return redirect(frame->ifindex, 0);
#endif
}

INLINE int is_silent(const struct service *of) { return (u32)(now_coarse() >> 28) > of->answers_after; }

// The answers of crates/logic/src/dsr/owner.rs while no process gives them. Another machine that claims the address, as one
// does that has taken it over, ends that.
INLINE int answer_arp(struct FRAME *frame, struct service *of)
{
	struct {
		struct ethernet ethernet;
		u16 kinds[2], lengths, operation, from_mac[3], from[2], to_mac[3], to[2];
	} arp;
	const u16 *mac = (const u16 *)of->own;
	u16 vip[2] = {of->vip[1] >> 32, of->vip[1] >> 48};
	if (load_bytes(frame, 0, &arp, sizeof arp) || arp.ethernet.type != swap16(0x0806) || arp.kinds[0] != swap16(1) ||
	    arp.kinds[1] != swap16(0x0800) || arp.lengths != swap16(0x0604) || is_mac(arp.ethernet.from, mac))
		return PASS;
	if (arp.from[0] == vip[0] && arp.from[1] == vip[1]) {
		if (!is_mac(arp.from_mac, mac))
			of->answers_after = 0;
		return PASS;
	}
	// A machine that asks before it takes the address (RFC 5227, from 0.0.0.0) is to have it.
	if (arp.operation != swap16(1) || arp.to[0] != vip[0] || arp.to[1] != vip[1] || !(arp.from[0] | arp.from[1]) ||
	    !is_silent(of))
		return PASS;
	arp.operation = swap16(2);
#pragma unroll
	for (int n = 0; n < 3; n++) {
		arp.ethernet.to[n] = arp.to_mac[n] = arp.from_mac[n];
		arp.ethernet.from[n] = arp.from_mac[n] = mac[n];
	}
#pragma unroll
	for (int n = 0; n < 2; n++) {
		arp.to[n] = arp.from[n];
		arp.from[n] = vip[n];
	}
	return store(frame, 0, &arp, sizeof arp) ? DROP : send_back(frame);
}

INLINE u64 with_word(u64 sum, u64 word) { return sum + (word & 0xffffffff) + (word >> 32); }

INLINE int answer_solicitation(struct FRAME *frame, u32 length, struct service *of)
{
	struct ethernet ethernet;
	struct ipv6 head;
	struct {
		u8 kind, code;
		u16 checksum;
		u32 flags;
		u64 target[2];
		u8 option, units, mac[6];
	} message;
	const u16 *mac = (const u16 *)of->own;
	if (load_bytes(frame, 0, &ethernet, sizeof ethernet) || ethernet.type != swap16(0x86dd) ||
	    load_bytes(frame, ETHERNET, &head, sizeof head) || head.next != ICMPV6 || head.hops != 255 ||
	    load_bytes(frame, ETHERNET + sizeof head, &message, 24) || is_mac(ethernet.from, mac))
		return PASS;
	int is_question = message.kind == SOLICITATION;
	if (message.kind == ADVERTISEMENT ? is_same(message.target, of->vip) : is_question && is_same(head.from, of->vip)) {
		of->answers_after = 0;
		return PASS;
	}
	// A machine that is about to take the address has none to ask from.
	if (!is_question || !is_same(message.target, of->vip) || !(head.from[0] | head.from[1]) ||
	    length < ETHERNET + sizeof head + sizeof message || !is_silent(of))
		return PASS;
#pragma unroll
	for (int n = 0; n < 3; n++) {
		ethernet.to[n] = ethernet.from[n];
		ethernet.from[n] = mac[n];
	}
	head.first = 0x60;
	head.second = head.unused[0] = head.unused[1] = 0;
	head.length = swap16(sizeof message);
	message.kind = ADVERTISEMENT;
	message.code = message.checksum = 0;
	// Solicited, and to replace what the asker knew; with the Ethernet address of the target.
	message.flags = 0x60;
	message.option = 2;
	message.units = 1;
#pragma unroll
	for (int n = 0; n < 6; n++)
		message.mac[n] = of->own[n];
	u64 words[4], sum = ((u64)sizeof message << 24) + ((u64)ICMPV6 << 24);
#pragma unroll
	for (int n = 0; n < 2; n++) {
		head.to[n] = head.from[n];
		head.from[n] = of->vip[n];
		sum = with_word(with_word(sum, head.to[n]), head.from[n]);
	}
	__builtin_memcpy(words, &message, sizeof message);
#pragma unroll
	for (int n = 0; n < 4; n++)
		sum = with_word(sum, words[n]);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	message.checksum = ~((sum & 0xffff) + (sum >> 16));
	return store(frame, 0, &ethernet, sizeof ethernet) || store(frame, ETHERNET, &head, sizeof head) ||
			       store(frame, ETHERNET + sizeof head, &message, sizeof message)
		? DROP
		: send_back(frame);
}

INLINE int answer(struct FRAME *frame, u32 length)
{
	u32 zero = 0;
	struct service *of = map_lookup(&service, &zero);
	if (!of || !of->answers_after)
		return PASS;
	return of->version == 4 ? answer_arp(frame, of) : answer_solicitation(frame, length, of);
}
