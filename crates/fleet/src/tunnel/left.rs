//! The traces of a tunnel's steps, as entries of the undo list.

use hosts::tunnel::plan::{Listen, Mount, Tunnel, Values, Way};
use hosts::tunnel::template::Template;
use hosts::tunnel::undo::Entry;

/// The sockets of the local listeners.
pub(super) fn forwards(tunnel: &Tunnel) -> Entry {
    let here = tunnel.forwards.iter().filter(|forward| !matches!(forward.way, Way::Remote { .. }));
    let sockets = here.filter_map(|forward| match forward.way.listen() {
        Listen::Unix(path) => Some(path.clone()),
        Listen::Tcp(_) => None,
    });
    Entry::Forwards { sockets: sockets.collect() }
}

/// The file system that the mount command mounts.
pub(super) fn mount(mount: &Mount, values: &Values) -> Entry {
    let fill = |words: &[Template]| words.iter().map(|word| word.fill(values)).collect();
    Entry::Mount {
        point: mount.point.clone(),
        unmount: fill(&mount.unmount),
        lazy: fill(&mount.unmount_lazy),
        command: fill(&mount.mount),
    }
}
