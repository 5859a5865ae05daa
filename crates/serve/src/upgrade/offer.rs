//! What the old process offers to the new one.

use std::path::Path;

use state::listen::HandedKey;

use super::protocol::{Offer, SocketFile};

pub(crate) fn listener(key: HandedKey, file: Option<(String, (u64, u64))>) -> Offer {
    let file = file.map(|(path, (device, inode))| SocketFile { path, device, inode });
    Offer::Listener { key: key.into(), file }
}

pub(crate) fn systemd(name: &str) -> Offer {
    Offer::Systemd { name: name.to_owned() }
}

/// `None` for a socket whose file is not known.
pub(crate) fn control(file: &sys::socket::SocketFile) -> Option<Offer> {
    SocketFile::of(file).map(|file| Offer::Control { file })
}

pub(crate) fn remote(bind: &str) -> Offer {
    Offer::Remote { bind: bind.to_owned() }
}

pub(crate) fn admin(bind: &str, file: Option<&sys::socket::SocketFile>) -> Offer {
    Offer::Admin { bind: bind.to_owned(), file: file.and_then(SocketFile::of) }
}

pub(crate) fn pid_file(path: &Path) -> Option<Offer> {
    path.to_str().map(|path| Offer::PidFile { path: path.to_owned() })
}
