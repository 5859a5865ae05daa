//! Programs beside ours on an interface: one of XDP in generic mode takes away from those of `tc` what they need.

use std::io;

use super::{Hook, calls, clsact};
use crate::interfaces;

/// Number of the XDP program in generic mode on an interface.
pub fn generic(interface: &str) -> io::Result<Option<u32>> {
    interfaces::details(interface).map(|details| details.generic_program)
}

/// Numbers of the programs of `tc` where packets come in on an interface.
pub fn behind_driver(index: u32) -> io::Result<Vec<u32>> {
    let (place, _) = Hook::Tc.attach();
    // Kernels before 6.6 do not have that place.
    let mut all = calls::programs_at(index, place).unwrap_or_default();
    all.extend(clsact::programs(index)?);
    Ok(all)
}
