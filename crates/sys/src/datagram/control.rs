//! Addresses and control messages as the kernel reads and writes them (cmsg(3), ip(7), ipv6(7), udp(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use nix::libc;

/// An address. Both variants begin with the family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Room for control messages: `IPV6_PKTINFO` needs 40 bytes, `UDP_SEGMENT` 24.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control([u8; 64]);

impl Default for Control {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Default for Name {
    fn default() -> Self {
        // SAFETY: zeroes are a value of both variants, which are structs of integers.
        Self { v6: unsafe { std::mem::zeroed() } }
    }
}

impl Name {
    /// The address, of which the kernel or [`Name::of`] has written `length` bytes.
    pub(super) fn read(&self, length: usize) -> Option<SocketAddr> {
        // SAFETY: the kernel or `of` has written the whole variant that the family names, as the length says; the rest is
        // zeroes or an older address, and every value of an integer is valid.
        unsafe {
            match i32::from(self.v4.sin_family) {
                libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                    let ip = Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr));
                    Some(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into())
                }
                libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                    let v6 = &self.v6;
                    let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                    let port = u16::from_be(v6.sin6_port);
                    Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }

    /// An address for the kernel, with its length.
    pub(super) fn of(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut name = Self::default();
        let length = match address {
            SocketAddr::V4(v4) => {
                // SAFETY: zeroes are a value of this struct of integers.
                let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                name.v4 = raw;
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                // SAFETY: zeroes are a value of this struct of integers.
                let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = v6.port().to_be();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_flowinfo = v6.flowinfo();
                raw.sin6_scope_id = v6.scope_id();
                name.v6 = raw;
                size_of::<libc::sockaddr_in6>()
            }
        };
        (name, length as libc::socklen_t)
    }
}

impl Control {
    /// Our address to which a datagram was sent, of a control message that the kernel has written.
    pub(super) fn local(&mut self, length: usize) -> Option<IpAddr> {
        // SAFETY: zeroes are a value of the struct, whose pointer and length are set below to those of `self`.
        let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
        head.msg_control = (&raw mut *self).cast();
        head.msg_controllen = length.min(size_of::<Self>()) as _;
        // SAFETY: `head` describes the memory of `self`; the functions return pointers into it or null.
        let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const head) };
        while !message.is_null() {
            // SAFETY: the pointer is not null and points to a control message within the memory of `self`. The data is
            // read without an assumption about its alignment, and only if the message is long enough for it.
            unsafe {
                let data = libc::CMSG_DATA(message);
                let length = (*message).cmsg_len as usize;
                match ((*message).cmsg_level, (*message).cmsg_type) {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO)
                        if length >= libc::CMSG_LEN(size_of::<libc::in_pktinfo>() as u32) as usize =>
                    {
                        // Of a broadcast this is an address of the interface, and of anything else its destination.
                        let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                        return Some(Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr)).into());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                        if length >= libc::CMSG_LEN(size_of::<libc::in6_pktinfo>() as u32) as usize =>
                    {
                        let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                        return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(&raw const head, message);
            }
        }
        None
    }

    /// Writes the message that makes the kernel send from `from`. Returns its length.
    pub(super) fn write_local(&mut self, from: IpAddr) -> usize {
        match from {
            IpAddr::V4(ip) => {
                // SAFETY: zeroes are a value of this struct of integers; interface 0 is any.
                let mut info: libc::in_pktinfo = unsafe { std::mem::zeroed() };
                info.ipi_spec_dst.s_addr = u32::from(ip).to_be();
                self.write(0, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
            }
            IpAddr::V6(ip) => {
                // SAFETY: zeroes are a value of this struct of integers; interface 0 is any.
                let mut info: libc::in6_pktinfo = unsafe { std::mem::zeroed() };
                info.ipi6_addr.s6_addr = ip.octets();
                self.write(0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
            }
        }
    }

    /// Writes the message that makes the kernel cut the bytes into datagrams of `segment` bytes, behind `length` bytes of
    /// messages. Returns the length of all.
    pub(super) fn write_segment(&mut self, length: usize, segment: u16) -> usize {
        self.write(length, libc::SOL_UDP, libc::UDP_SEGMENT, segment)
    }

    fn write<T: Copy>(&mut self, at: usize, level: i32, kind: i32, data: T) -> usize {
        // SAFETY: these functions only calculate with lengths.
        let (space, length) =
            unsafe { (libc::CMSG_SPACE(size_of::<T>() as u32), libc::CMSG_LEN(size_of::<T>() as u32)) };
        let end = at + space as usize;
        assert!(end <= size_of::<Self>() && at.is_multiple_of(align_of::<libc::cmsghdr>()), "{at}..{end}");
        let head: *mut libc::cmsghdr = (&raw mut *self).cast::<u8>().wrapping_add(at).cast();
        // SAFETY: the memory is aligned for the head, and has room for it and the data (asserted above). The data is
        // written without an assumption about its alignment.
        unsafe {
            (*head).cmsg_level = level;
            (*head).cmsg_type = kind;
            (*head).cmsg_len = length as _;
            libc::CMSG_DATA(head).cast::<T>().write_unaligned(data);
        }
        end
    }
}
