//! What the steps of a tunnel leave behind, as the list of what to undo has it.

use logic::tunnel::plan::{Listen, Mount, Tunnel, Values, Way};
use logic::tunnel::template::Template;
use logic::tunnel::undo::Entry;

/// What listening on this side leaves.
pub(super) fn forwards(tunnel: &Tunnel) -> Entry {
    let here = tunnel.forwards.iter().filter(|forward| !matches!(forward.way, Way::Remote { .. }));
    let sockets = here.filter_map(|forward| match forward.way.listen() {
        Listen::Unix(path) => Some(path.clone()),
        Listen::Tcp(_) => None,
    });
    Entry::Forwards { sockets: sockets.collect() }
}

/// What the mount command leaves.
pub(super) fn mount(mount: &Mount, values: &Values) -> Entry {
    let fill = |words: &[Template]| words.iter().map(|word| word.fill(values)).collect();
    Entry::Mount {
        point: mount.point.clone(),
        unmount: fill(&mount.unmount),
        lazy: fill(&mount.unmount_lazy),
        command: fill(&mount.mount),
    }
}
