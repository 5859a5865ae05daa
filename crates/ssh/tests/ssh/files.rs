//! Files to and from real OpenSSH servers.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::session;
use hosts::fleet::ending::{Phase, Reason};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ssh::{Allowance, Links, Moved, Put, Sftp, TransferError, Tree, TreeError};
use testing::sshd::{Sshd, children_of};

async fn put(sftp: &Sftp, from: &Path, to: &str) -> Result<Moved, TransferError> {
    let tree = Tree::read(&[from.to_owned()]).unwrap();
    Put::new(sftp, &tree, to).run(&|_| ()).await
}

async fn get(sftp: &Sftp, from: &str, to: &Path) -> Result<Moved, TransferError> {
    let allowance = Allowance { bytes: 1 << 30, entries: 1000, links: Links::Inside };
    sftp.get(from, to, allowance, &|_| ()).await
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 % 251) as u8).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_file_goes_there_and_back_with_its_mode() {
    let sshd = Sshd::start();
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    for length in [0, 1, 32_768, 3_000_001] {
        let (from, to, back) = (here.path().join("from"), there.path().join("to"), here.path().join("back"));
        fs::write(&from, data(length)).unwrap();
        fs::set_permissions(&from, fs::Permissions::from_mode(0o750)).unwrap();
        let moved = Moved { files: 1, bytes: length as u64 };
        assert_eq!(put(&sftp, &from, to.to_str().unwrap()).await.unwrap(), moved);
        assert_eq!((fs::read(&to).unwrap(), mode(&to)), (data(length), 0o750));
        assert_eq!(get(&sftp, to.to_str().unwrap(), &back).await.unwrap(), moved);
        assert_eq!((fs::read(&back).unwrap(), mode(&back)), (data(length), 0o750));
    }
    assert_eq!(fs::read_dir(there.path()).unwrap().count(), 1, "a temporary file stayed");
}

#[tokio::test]
async fn a_tree_goes_there_and_back() {
    let sshd = Sshd::start();
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir_all(tree.join("deep/deeper")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    for number in 0..40 {
        fs::write(tree.join(format!("deep/deeper/{number} file")), data(number * 1000)).unwrap();
    }
    symlink("deep/deeper", tree.join("link")).unwrap();
    fs::set_permissions(tree.join("deep/deeper"), fs::Permissions::from_mode(0o555)).unwrap();
    let moved = put(&sftp, &tree, there.path().to_str().unwrap()).await.unwrap();
    assert_eq!(moved.files, 40);
    let copy = there.path().join("tree");
    assert_eq!(mode(&copy.join("deep/deeper")), 0o555);
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("deep/deeper"));
    let back = here.path().join("back");
    assert_eq!(get(&sftp, copy.to_str().unwrap(), &back).await.unwrap(), moved);
    for number in 0..40 {
        assert_eq!(fs::read(back.join(format!("deep/deeper/{number} file"))).unwrap(), data(number * 1000));
    }
    assert!(back.join("empty").is_dir());
    assert_eq!(fs::read_link(back.join("link")).unwrap(), Path::new("deep/deeper"));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_leaves_the_old_one_and_says_why() {
    let sshd = Sshd::for_ordinary_user("");
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let here = tempfile::tempdir().unwrap();
    let from = here.path().join("from");
    fs::write(&from, "new").unwrap();
    let failure = put(&sftp, &from, "/proc/nothing").await.unwrap_err();
    assert!(matches!(&failure, TransferError::There { .. }), "{failure}");
    for (to, directory) in [("/no/such/file", "/no/such"), ("/etc/passwd/file", "/etc/passwd")] {
        let failure = put(&sftp, &from, to).await.unwrap_err();
        assert_eq!(failure.to_string(), format!("copy into \"{directory}\" there: no such directory"));
    }
    let failure = get(&sftp, "/no/such/file", &here.path().join("to")).await.unwrap_err();
    assert_eq!(failure.to_string(), "look at \"/no/such/file\" there: no such file or directory");
    let failure = Tree::read(&[here.path().join("missing")]).unwrap_err();
    assert!(matches!(failure, TreeError::Here { doing: "look at", .. }), "{failure}");
    let failure = get(&sftp, "/dev/zero", &here.path().join("zero")).await.unwrap_err();
    assert!(matches!(failure, TransferError::Special { .. }), "{failure}");
    assert_eq!(fs::read_dir(here.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_name_that_is_not_in_utf_8_is_not_taken_for_another_one() {
    let sshd = Sshd::start();
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    fs::write(there.path().join(OsStr::from_bytes(b"\xff")), "one").unwrap();
    fs::write(there.path().join("\u{fffd}"), "another").unwrap();
    let failure = get(&sftp, there.path().to_str().unwrap(), &here.path().join("to")).await.unwrap_err();
    assert!(failure.to_string().contains("is not UTF-8 and could be confused with another"), "{failure}");
}

#[tokio::test]
async fn a_file_without_a_size_is_read_to_its_end() {
    let sshd = Sshd::start();
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let here = tempfile::tempdir().unwrap();
    let to = here.path().join("version");
    get(&sftp, "/proc/version", &to).await.unwrap();
    assert_eq!(fs::read(&to).unwrap(), fs::read("/proc/version").unwrap());
}

#[tokio::test]
async fn a_server_without_sftp_is_told_apart() {
    let sshd = Sshd::with("Subsystem other /bin/false");
    let failure = session(&sshd).await.sftp().await.err().unwrap();
    assert_eq!(failure.phase, Phase::Start, "{failure:?}");
    assert_eq!(failure.reason, Reason::ChannelRefused);
    assert_eq!(failure.detail, "web1 has no subsystem sftp");
}

#[tokio::test]
async fn only_files_are_replaced_and_a_link_to_one_stays() {
    let sshd = Sshd::start();
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    let from = here.path().join("from");
    fs::write(&from, "new").unwrap();
    fs::create_dir(there.path().join("open")).unwrap();
    fs::set_permissions(there.path().join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let place = |name: &str| there.path().join(name);
    nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
    fs::write(place("file"), "old").unwrap();
    for (link, leads) in [
        ("dangling", "nowhere"),
        ("null", "/dev/null"),
        ("to-pipe", "pipe"),
        ("link", "file"),
        ("open/link", "../file"),
    ] {
        symlink(leads, place(link)).unwrap();
    }
    let listed = || {
        let mut names: Vec<_> =
            fs::read_dir(there.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = listed();
    for (name, said) in [
        ("pipe", "it is a named pipe (FIFO); remove it there first, or name another place"),
        ("socket", "it is a socket; "),
        ("null", "it is a symbolic link to a character device; "),
        ("to-pipe", "it is a symbolic link to a named pipe (FIFO); "),
        ("dangling", "it is a symbolic link that leads to nothing; "),
        ("open/link", "it is a symbolic link, in a directory where any user could have made it; "),
    ] {
        let kind = fs::symlink_metadata(place(name)).unwrap().file_type();
        let failure = put(&sftp, &from, place(name).to_str().unwrap()).await.unwrap_err().to_string();
        assert!(failure.contains(said), "{name}: {failure}");
        assert_eq!(fs::symlink_metadata(place(name)).unwrap().file_type(), kind, "{name}");
    }
    // A file of a copied directory meets a link to a directory.
    fs::create_dir_all(place("tree/x")).unwrap();
    symlink("x", place("tree/from")).unwrap();
    let inner = here.path().join("tree");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("from"), "new").unwrap();
    let failure = put(&sftp, &inner, there.path().to_str().unwrap()).await.unwrap_err().to_string();
    assert!(failure.contains("it is a symbolic link to a directory; "), "{failure}");
    fs::remove_dir_all(place("tree")).unwrap();
    assert_eq!((fs::read_to_string(place("file")).unwrap(), listed()), ("old".to_owned(), before.clone()));
    put(&sftp, &from, place("link").to_str().unwrap()).await.unwrap();
    assert_eq!(fs::read_link(place("link")).unwrap(), Path::new("file"));
    assert_eq!((fs::read_to_string(place("file")).unwrap(), listed()), ("new".to_owned(), before));
}

#[tokio::test]
async fn a_file_that_is_made_shorter_while_it_comes_is_not_taken_for_whole() {
    let sshd = Sshd::start();
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = there.path().join("log");
    let allowance = Allowance { bytes: 1 << 40, entries: 1, links: Links::Inside };
    for left in [0, 100_000] {
        fs::write(&log, "").unwrap();
        let file = fs::File::options().write(true).open(&log).unwrap();
        file.set_len(100 << 20).unwrap();
        let shorten = |_| file.set_len(left).unwrap();
        let to = here.path().join("log");
        let failure = sftp.get(log.to_str().unwrap(), &to, allowance, &shorten).await.unwrap_err();
        assert!(
            matches!(failure, TransferError::Short { .. } | TransferError::Moving { .. }),
            "{left}: {failure}"
        );
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0, "{left}");
    }
}

#[tokio::test]
async fn an_allowance_is_for_all_sources_together() {
    let sshd = Sshd::start();
    let sftp = session(&sshd).await.sftp().await.unwrap();
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sources = ["a", "b"].map(|name| {
        fs::write(there.path().join(name), data(600)).unwrap();
        (there.path().join(name).to_str().unwrap().to_owned(), here.path().join(name))
    });
    let get = async |bytes, entries| {
        let allowance = Allowance { bytes, entries, links: Links::Inside };
        let mut moved = Moved::default();
        (sftp.get_all(&sources, allowance, &mut moved, &|_| ()).await, moved)
    };
    let one = Moved { files: 1, bytes: 600 };
    assert!(matches!(get(1199, 2).await, (Err(TransferError::Large { .. }), moved) if moved == one));
    assert!(matches!(get(1200, 1).await, (Err(TransferError::Many { .. }), moved) if moved == one));
    assert!(matches!(get(1200, 2).await, (Ok(()), Moved { files: 2, bytes: 1200 })));
}

#[tokio::test]
async fn what_was_begun_is_taken_back_or_named() {
    for lost in [false, true] {
        let sshd = Sshd::start();
        let sftp = session(&sshd).await.sftp().await.unwrap();
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = here.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o777)).unwrap();
        fs::File::create(tree.join("big")).unwrap().set_len(100 << 30).unwrap();
        let (seen, tree) = (tokio::sync::Notify::new(), Tree::read(&[tree]).unwrap());
        let mut put = Put::new(&sftp, &tree, there.path().to_str().unwrap());
        let on_bytes = |_| seen.notify_one();
        tokio::select! {
            done = put.run(&on_bytes) => panic!("{done:?}"),
            () = seen.notified() => {}
        }
        let copy = there.path().join("tree");
        let count = || fs::read_dir(&copy).unwrap().count();
        // No other user can write into it before all modes are set. If it stays so, the next copy finds it as one that was there.
        assert_eq!((mode(&copy), count()), (0o755, 1));
        if lost {
            for child in children_of(sshd.pid()) {
                kill(Pid::from_raw(child.cast_signed()), Signal::SIGKILL).unwrap();
            }
        }
        assert_eq!(put.take_back().await.is_err(), lost);
        assert_eq!((put.left().is_some(), count()), (lost, usize::from(lost)), "{:?}", put.left());
    }
}
