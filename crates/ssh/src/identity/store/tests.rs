use std::os::unix::fs::PermissionsExt as _;

use super::*;
use hosts::identity::{Found, Pin, Proof};

pub(crate) fn key(seed: u32) -> PublicKey {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend(seed.to_be_bytes().into_iter().cycle().take(32));
    PublicKey::from_blob(&blob).unwrap()
}

pub(crate) fn host(name: &str, seed: u32) -> HostFile {
    let mut host = HostFile::new(name.parse().unwrap());
    let date = "2026-11-20".parse().unwrap();
    host.pin_key(Pin { key: key(seed), proof: Proof::Console, date, by: None, absent: None });
    host
}

fn store(directory: &tempfile::TempDir) -> Store {
    let (configuration, state) = (directory.path().join("config"), directory.path().join("state"));
    Store::new(Places { configuration, state })
}

fn name(name: &str) -> Name {
    name.parse().unwrap()
}

#[test]
fn files_are_ours_alone_and_leave_nothing_beside_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    assert_eq!(store.change(&name("web1"), |_| Ok(host("web1", 1))).unwrap(), Change::Written);
    assert_eq!(store.change(&name("web1"), |_| Ok(host("web1", 1))).unwrap(), Change::Nothing);
    let mode = |path: std::path::PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(store.places().hosts()), 0o700);
    assert_eq!(mode(store.path(&name("web1"))), 0o600);
    let mut names: Vec<_> =
        fs::read_dir(store.places().hosts()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".lock", "web1.host"]);
}

#[test]
fn what_a_killed_writer_left_behind_is_no_host_and_goes_with_the_next_change() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    store.change(&name("web1"), |_| Ok(host("web1", 1))).unwrap();
    let left = store.places().hosts().join(".new.0");
    fs::write(&left, "id we").unwrap();
    assert_eq!(store.load().unwrap().hosts().len(), 1);
    store.change(&name("web2"), |_| Ok(host("web2", 2))).unwrap();
    assert!(!left.exists());
}

#[test]
fn damaged_file_is_refused_alone_and_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    store.change(&name("web1"), |_| Ok(host("web1", 1))).unwrap();
    store.change(&name("web2"), |_| Ok(host("web2", 2))).unwrap();
    let whole = fs::read(store.path(&name("web1"))).unwrap();
    fs::write(store.path(&name("web1")), &whole[..whole.len() / 2]).unwrap();
    let index = store.load().unwrap();
    assert!(matches!(index.find("web1", 22), Found::Damaged(_)));
    assert!(matches!(index.find("web2", 22), Found::Host(_)));
    let refused = store.change(&name("web1"), |_| Ok(host("web1", 3))).unwrap_err();
    assert!(refused.to_string().contains("web1.host is damaged: line 2: "), "{refused}");
    assert_eq!(fs::read(store.path(&name("web1"))).unwrap().len(), whole.len() / 2);
}

#[test]
fn directory_that_others_can_write_to_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    store.change(&name("web1"), |_| Ok(host("web1", 1))).unwrap();
    fs::set_permissions(store.places().hosts(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = store.load().unwrap_err().to_string();
    assert!(refused.contains("can be written by others: chmod go-w "), "{refused}");
}

#[test]
fn several_writers_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for at in 0..8 {
                    let add = |file: Option<HostFile>| {
                        let mut file = file.unwrap_or_else(|| HostFile::new(name("web1")));
                        let pin = host("web1", writer * 100 + at).pins().next().unwrap().clone();
                        file.pin_key(pin);
                        Ok(file)
                    };
                    store.change(&name("web1"), add).unwrap();
                }
            });
        }
    });
    assert_eq!(store.read(&name("web1")).unwrap().unwrap().pins().count(), 32);
}

#[test]
fn renamed_host_is_found_under_both_names() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    store.change(&name("web1"), |_| Ok(host("web1", 1))).unwrap();
    store.rename(&name("web1"), &name("www9")).unwrap();
    let index = store.load().unwrap();
    for asked in ["web1", "www9"] {
        assert!(
            matches!(index.find(asked, 22), Found::Host(host) if host.name().as_str() == "www9"),
            "{asked}"
        );
    }
    assert!(matches!(store.rename(&name("web1"), &name("x")), Err(IdentityError::Unknown(_))));
}

#[test]
fn damaged_list_of_revoked_keys_lets_nobody_through() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    store.revoke(&[key(7)], "2026-11-20".parse().unwrap()).unwrap();
    assert!(store.load().unwrap().is_revoked(&key(7)));
    fs::write(store.places().revoked(), "ssh-ed25519 AAAA\n").unwrap();
    assert!(matches!(store.load(), Err(IdentityError::Damaged { .. })));
}

#[test]
fn key_that_is_added_to_a_list_whose_last_line_has_no_end_is_revoked_and_so_are_the_others() {
    for last in ["# lost in the fire", &format!("{} the laptop", key(1)), &key(1).to_string()] {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        store.revoke(&[key(7)], "2026-11-20".parse().unwrap()).unwrap();
        let list = fs::read_to_string(store.places().revoked()).unwrap();
        fs::write(store.places().revoked(), format!("{list}{last}")).unwrap();
        store.revoke(&[key(8)], "2026-11-21".parse().unwrap()).unwrap();
        let index = store.load().unwrap();
        assert!(index.is_revoked(&key(7)) && index.is_revoked(&key(8)), "after {last:?}");
        assert_eq!(index.is_revoked(&key(1)), !last.starts_with('#'), "after {last:?}");
    }
}

#[test]
fn files_that_others_own_or_can_write_to_prove_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    for (at, name) in ["web1", "web2", "web3"].iter().enumerate() {
        let seed = u32::try_from(at).unwrap();
        store.change(&name.parse().unwrap(), |_| Ok(host(name, seed))).unwrap();
    }
    let chmod = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(&store.path(&name("web1")), 0o664);
    // Only root can change the owner of a file; for other users, the test checks only the mode.
    let gave = std::os::unix::fs::chown(store.path(&name("web2")), Some(65_534), None).is_ok();
    let index = store.load().unwrap();
    assert!(matches!(index.find("web1", 22), Found::Damaged(_)));
    assert_eq!(matches!(index.find("web2", 22), Found::Damaged(_)), gave);
    assert!(matches!(index.find("web3", 22), Found::Host(_)));
    for mode in [0o777, 0o1777, 0o770] {
        chmod(&store.places().hosts(), mode);
        assert!(store.load().is_err(), "{mode:o}");
    }
    chmod(&store.places().hosts(), 0o700);
    chmod(&store.places().configuration, 0o777);
    assert!(store.load().is_err(), "a user who can replace the directory can replace the files");
}

#[test]
fn a_pipe_in_place_of_a_file_and_a_lost_list_of_revoked_keys_are_faults() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    store.change(&name("web1"), |_| Ok(host("web1", 1))).unwrap();
    nix::unistd::mkfifo(&store.path(&name("pipe")), nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert!(matches!(store.load().unwrap().find("pipe", 22), Found::Damaged(_)));
    std::os::unix::fs::symlink("/nonexistent/list", store.places().revoked()).unwrap();
    assert!(store.load().is_err());
}
