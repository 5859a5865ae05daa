//! Places of an interface where a program can sit.

/// Where a program sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Behind the network card's driver: TCX, which wants Linux 6.6.
    Tc,
    /// The same on kernels without TCX: a filter of the qdisc clsact.
    TcFilter,
    /// In the driver.
    Xdp,
    /// XDP before anything else that the kernel does, for cards whose driver does not have it.
    XdpGeneric,
}

impl Hook {
    pub(super) const fn pin(self) -> &'static str {
        match self {
            Self::Tc => "link-tc",
            Self::TcFilter => "filter-tc",
            Self::Xdp => "link-xdp",
            Self::XdpGeneric => "link-xdp-generic",
        }
    }

    pub(super) const fn is_tc(self) -> bool {
        matches!(self, Self::Tc | Self::TcFilter)
    }

    /// Kind and flags of a link (linux/bpf.h, linux/if_link.h).
    pub(super) const fn attach(self) -> (u32, u32) {
        match self {
            // BPF_TCX_INGRESS. A filter has no link.
            Self::Tc | Self::TcFilter => (46, 0),
            // BPF_XDP with XDP_FLAGS_DRV_MODE: the kernel would silently take the other one.
            Self::Xdp => (37, 1 << 2),
            // XDP_FLAGS_SKB_MODE
            Self::XdpGeneric => (37, 1 << 1),
        }
    }
}
