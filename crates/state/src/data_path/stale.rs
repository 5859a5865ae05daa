//! Programs that earlier processes have left in the kernel for addresses that the configuration does not have any more.

use config::Config;
use config::types::BindAddress;
use sys::bpf::{Removed, StalePins};

use super::name_of;

/// Removes them, before programs for the present addresses are attached. Returns what was done.
pub fn remove_stale_programs(config: &Config) -> Result<Vec<String>, String> {
    let services = config.listeners.iter().filter_map(|listener| Some((listener, listener.dsr()?)));
    let names = services.flat_map(|(listener, settings)| {
        let vips = listener.binds.iter().filter_map(BindAddress::vip);
        vips.map(|vip| name_of(&settings.interface, &listener.name, vip))
    });
    let stale = StalePins::all(&names.collect::<Vec<_>>())
        .map_err(|error| format!("programs of earlier starts cannot be looked for: {error}"))?;
    let mut said = Vec::new();
    for one in stale {
        let path = one.path().display();
        let removed = one.remove().map_err(|error| {
            format!(
                "a program of an earlier start goes on forwarding, and cannot be taken away: {path}: {error}; `rm -r {path}` as root ends it"
            )
        })?;
        if removed == Removed::Program {
            said.push(format!(
                "a program of an earlier start was taken away: no dsr listener has its name, interface and address any more ({path})"
            ));
        }
    }
    Ok(said)
}
