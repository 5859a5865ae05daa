use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::thread;

use super::super::Store;
use super::*;
use hosts::identity::{Pin, Proof};
use hosts::ssh::key::PublicKey;

/// More than [`WORTH_A_THREAD`], so that the list is kept.
const HOSTS: u32 = 300;

fn host(name: &str, seed: u32) -> HostFile {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend(seed.to_be_bytes().into_iter().cycle().take(32));
    let (key, date) = (PublicKey::from_blob(&blob).unwrap(), "2026-11-20".parse().unwrap());
    let mut host = HostFile::new(name.parse().unwrap());
    host.pin_key(Pin { key, proof: Proof::Console, date, by: None, absent: None });
    host
}

struct Place {
    places: Places,
    _directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (configuration, state) = (directory.path().join("config"), directory.path().join("state"));
        let places = Places { configuration, state };
        super::super::files::private_directory(&places.hosts()).unwrap();
        for at in 0..HOSTS {
            let name = format!("host{at}");
            fs::write(places.hosts().join(format!("{name}.host")), host(&name, at).to_string()).unwrap();
        }
        Self { places, _directory: directory }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.places.hosts().join(format!("{name}.host"))
    }

    fn list(&self) -> std::path::PathBuf {
        self.places.identity_state().join(FILE)
    }

    /// The list as it is read when all files have been what they are for an hour.
    fn settled(&self) -> Listing {
        read_at(&self.places, SystemTime::now() + Duration::from_secs(3600)).unwrap()
    }

    /// The list without a kept one.
    fn plain(&self) -> Listing {
        let index = Store::new(self.places.clone()).load().unwrap();
        let damaged = index.damaged().iter().map(|(name, damage)| (name.clone(), damage.clone())).collect();
        Listing { hosts: index.hosts().iter().map(Summary::of).collect(), damaged }
    }

    /// Changes the kept list as no program does: what then comes from it can be told from what comes from the files.
    fn mark(&self) {
        let text = fs::read_to_string(self.list()).unwrap();
        let (lines, _) = text.strip_suffix('\n').unwrap().rsplit_once('\n').unwrap();
        let lines = lines.replace("\ted25519\t", "\tmarked\t") + "\n";
        fs::write(self.list(), lines.clone() + &seal(&lines)).unwrap();
    }

    /// Names of hosts that were read, and not taken from the marked list.
    fn read_anew(&self) -> Vec<String> {
        let listing = self.settled();
        let plain = self.plain();
        assert_eq!((listing.hosts.len(), listing.damaged), (plain.hosts.len(), plain.damaged));
        let unmarked = listing.hosts.iter().filter(|host| host.keys != "marked");
        unmarked.map(|host| host.name.to_string()).collect()
    }
}

#[test]
fn the_list_is_the_same_with_a_kept_one_and_files_are_not_read_again() {
    let place = Place::new();
    let first = place.settled();
    assert_eq!(first, place.plain());
    assert_eq!(fs::metadata(place.list()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(place.settled(), first);
    place.mark();
    assert_eq!(place.read_anew(), Vec::<String>::new());
}

#[test]
fn a_file_that_changed_was_added_or_removed_is_noticed() {
    let place = Place::new();
    place.settled();
    place.mark();
    // The same size, and the time of the content that it had: only the time of the change and its number differ.
    let (path, before) = (place.file("host7"), fs::metadata(place.file("host7")).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("2026-11-20", "2026-11-21")).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), before.len());
    // A file that replaces another one.
    let other = place.file("host8").with_extension("new");
    fs::write(&other, fs::read_to_string(place.file("host8")).unwrap()).unwrap();
    fs::rename(&other, place.file("host8")).unwrap();
    fs::write(place.file("added"), host("added", 1_000).to_string()).unwrap();
    fs::remove_file(place.file("host9")).unwrap();
    assert_eq!(place.read_anew(), ["added", "host7", "host8"]);
    // They are in the kept list now, and the removed one is not.
    place.mark();
    assert_eq!(place.read_anew(), Vec::<String>::new());
    assert!(!fs::read_to_string(place.list()).unwrap().contains("\thost9\t"));
}

#[test]
fn what_may_change_again_with_the_same_times_is_not_kept() {
    let place = Place::new();
    // The files were written a moment ago.
    assert_eq!(read(&place.places).unwrap(), place.plain());
    assert!(!place.list().exists());
    place.settled();
    fs::write(place.file("host7"), host("host7", 2_000).to_string()).unwrap();
    read(&place.places).unwrap();
    let kept = fs::read_to_string(place.list()).unwrap();
    assert!(!kept.contains("\thost7\t") && kept.contains("\thost8\t"), "{kept}");
    // The clock was set back.
    fs::remove_file(place.list()).unwrap();
    read_at(&place.places, UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    assert!(!place.list().exists());
}

#[test]
fn a_kept_list_that_is_damaged_of_another_version_or_not_ours_is_made_again() {
    let place = Place::new();
    place.settled();
    place.mark();
    let marked = fs::read(place.list()).unwrap();
    let other_version = {
        let text = String::from_utf8(marked.clone()).unwrap();
        let (lines, _) = text.strip_suffix('\n').unwrap().rsplit_once('\n').unwrap();
        let lines = lines.replacen("format 1", "format 0", 1) + "\n";
        (lines.clone() + &seal(&lines)).into_bytes()
    };
    let mut flipped = marked.clone();
    flipped[marked.len() / 2] ^= 1;
    let wrong: [&[u8]; 8] =
        [b"", b"\n", b"\n\n", b"\xff\xfe", &marked[..marked.len() / 2], &flipped, &other_version, &[0; 9000]];
    for wrong in wrong {
        fs::write(place.list(), wrong).unwrap();
        assert_eq!(place.settled(), place.plain());
        assert_ne!(fs::read(place.list()).unwrap(), wrong, "made again");
        place.mark();
        assert_eq!(place.read_anew(), Vec::<String>::new(), "and used");
    }
    let mode = |mode| fs::set_permissions(place.list(), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o666);
    assert_eq!(place.settled(), place.plain());
    // A link, a directory and a pipe in its place.
    let elsewhere = place.places.state.join("elsewhere");
    fs::rename(place.list(), &elsewhere).unwrap();
    symlink(&elsewhere, place.list()).unwrap();
    assert_eq!(place.settled(), place.plain());
    fs::remove_file(place.list()).unwrap();
    nix::unistd::mkfifo(&place.list(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(place.settled(), place.plain());
    fs::remove_file(place.list()).unwrap();
    fs::create_dir(place.list()).unwrap();
    assert_eq!(place.settled(), place.plain());
    assert_eq!(place.settled(), place.plain());
}

#[test]
fn a_damaged_file_a_link_and_a_file_that_others_may_write_are_read_each_time() {
    let place = Place::new();
    place.settled();
    place.mark();
    fs::write(place.file("host1"), "id other\n").unwrap();
    fs::set_permissions(place.file("host2"), fs::Permissions::from_mode(0o666)).unwrap();
    let target = place.places.configuration.join("host3");
    fs::rename(place.file("host3"), &target).unwrap();
    symlink(&target, place.file("host3")).unwrap();
    for _ in 0..2 {
        assert_eq!(place.read_anew(), ["host3"]);
        let damaged: Vec<_> = place.settled().damaged.into_keys().map(|name| name.to_string()).collect();
        assert_eq!(damaged, ["host1", "host2"]);
    }
}

#[test]
fn a_place_that_nobody_can_write_to_only_costs_the_reading() {
    let place = Place::new();
    // A file where the directory would be: not even root can write there.
    fs::create_dir_all(&place.places.state).unwrap();
    fs::write(place.places.identity_state(), "").unwrap();
    assert_eq!(place.settled(), place.plain());
    fs::remove_file(place.places.identity_state()).unwrap();
    // Another process is writing.
    let lock = Lock::of(&place.places.identity_state()).unwrap();
    assert_eq!(place.settled(), place.plain());
    assert!(!place.list().exists());
    drop(lock);
    place.settled();
    assert!(place.list().exists());
}

#[test]
fn few_hosts_need_no_kept_list() {
    let place = Place::new();
    for at in 10..HOSTS {
        fs::remove_file(place.file(&format!("host{at}"))).unwrap();
    }
    assert_eq!(place.settled().hosts.len(), 10);
    assert!(!place.list().exists());
}

#[test]
fn lists_at_once_beside_a_writer_are_whole() {
    let place = Place::new();
    thread::scope(|scope| {
        let read = || {
            for _ in 0..20 {
                let listing = place.settled();
                assert_eq!((listing.hosts.len(), listing.damaged.len()), (300, 0));
            }
        };
        let readers = [scope.spawn(read), scope.spawn(read), scope.spawn(read)];
        let store = Store::new(place.places.clone());
        for at in 0..10 {
            let name: Name = format!("host{at}").parse().unwrap();
            store.change(&name, |_| Ok(host(name.as_str(), 5_000 + at))).unwrap();
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(place.settled(), place.plain());
}
