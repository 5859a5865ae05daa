//! Programs that earlier processes have left in the kernel for addresses that the configuration does not have any more.

use config::Config;
use config::types::BindAddress;
use sys::bpf::{Had, Left};

use super::name_of;

/// Takes them away, before programs for the present addresses are attached. Returns what was done.
pub fn take_away_left(config: &Config) -> Result<Vec<String>, String> {
    let services = config.listeners.iter().filter_map(|listener| Some((listener, listener.dsr()?)));
    let names = services.flat_map(|(listener, settings)| {
        let vips = listener.binds.iter().filter_map(BindAddress::vip);
        vips.map(|vip| name_of(&settings.interface, &listener.name, vip))
    });
    let left = Left::all(&names.collect::<Vec<_>>())
        .map_err(|error| format!("programs of earlier starts cannot be looked for: {error}"))?;
    let mut said = Vec::new();
    for one in left {
        let path = one.path().display();
        let had = one.remove().map_err(|error| {
            format!(
                "a program of an earlier start goes on forwarding, and cannot be taken away: {path}: {error}; `rm -r {path}` as root ends it"
            )
        })?;
        if had == Had::Program {
            said.push(format!(
                "a program of an earlier start was taken away: no dsr listener has its name, interface and address any more ({path})"
            ));
        }
    }
    Ok(said)
}
