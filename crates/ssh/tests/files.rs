//! Files to and from real OpenSSH servers.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use logic::fleet::ending::{Phase, Reason};
use ssh::{Allowance, Links, Moved, Put, Sftp, TransferError, Tree, TreeError};
use support::session;
use support::sshd::Sshd;

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
    assert!(failure.to_string().contains("is not in UTF-8, and could be taken for another one"), "{failure}");
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
