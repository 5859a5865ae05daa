//! Programs of others on the interface of a service that do not go together with one of ours.
//!
//! Behind an XDP program in generic mode the kernel may copy a frame without the length of its Ethernet header (seen with
//! Linux 6.18 on a veth), so that programs of `tc` read it from its IP header on, and what they redirect lacks the first
//! one. A packet socket has the whole frame.

use std::collections::BTreeSet;

use logic::dsr::path::Rung;
use sys::bpf::{self, Named};

/// What is on an interface, without the programs that this start replaces.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// The XDP program in generic mode.
    generic: Option<String>,
    /// Programs of `tc`.
    behind_driver: Vec<String>,
}

impl Beside {
    /// Looks at an interface for a service of this name, of this instance of penstock. What cannot be found out is taken as
    /// nothing.
    pub(super) fn look(interface: &str, index: u32, name: &str, owner: Option<&str>) -> Self {
        let named = bpf::named();
        let own = bpf::directory_of(name);
        // The configuration has been looked at: its own services go together.
        let is_ours = |one: &&Named| {
            owner.is_some() && one.owner.as_deref() == owner || own.as_ref() == Some(&one.path)
        };
        let ours: BTreeSet<u32> = named.iter().filter(is_ours).map(|one| one.number).collect();
        let told = |number: u32| match named.iter().find(|one| one.number == number) {
            Some(one) => format!("program {number} of a penstock ({})", one.path.display()),
            None => format!("program {number}"),
        };
        let other = |number: &u32| !ours.contains(number);
        let generic = bpf::generic(interface).ok().flatten().filter(other).map(told);
        let behind_driver = bpf::behind_driver(index).unwrap_or_default();
        let behind_driver = behind_driver.into_iter().filter(other).map(told).collect();
        Self { generic, behind_driver }
    }

    /// Why a path does not go together with them.
    pub(super) fn refusal(&self, rung: Rung, interface: &str) -> Option<String> {
        match (rung, &self.generic, &*self.behind_driver) {
            (Rung::Tc, Some(generic), _) => Some(format!(
                "{interface} has an XDP program in generic mode ({generic}), behind which programs of tc see frames without their Ethernet header"
            )),
            (Rung::XdpGeneric, _, [first, further @ ..]) => {
                let further = match further.len() {
                    0 => String::new(),
                    count => format!(" and {count} more"),
                };
                Some(format!(
                    "{interface} has programs of tc ({first}{further}), which see frames without their Ethernet header behind xdp-generic"
                ))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generic_xdp_and_tc_do_not_go_together_and_each_goes_with_what_is_elsewhere() {
        let none = Beside::default();
        let generic = Beside { generic: Some("program 7".to_owned()), ..Beside::default() };
        let behind = Beside { behind_driver: vec!["program 8".to_owned(); 3], ..Beside::default() };
        for rung in [Rung::Xdp, Rung::Tc, Rung::XdpGeneric, Rung::AfPacket] {
            assert_eq!(none.refusal(rung, "eth0"), None, "{rung}");
            assert_eq!(generic.refusal(rung, "eth0").is_some(), rung == Rung::Tc, "{rung}");
            assert_eq!(behind.refusal(rung, "eth0").is_some(), rung == Rung::XdpGeneric, "{rung}");
        }
        let said = behind.refusal(Rung::XdpGeneric, "eth0").unwrap_or_default();
        assert!(said.contains("(program 8 and 2 more)"), "{said}");
    }
}
