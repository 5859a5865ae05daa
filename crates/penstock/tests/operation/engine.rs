//! `engine = "io-uring"` where there is no io_uring.

use testing::server::Setup;
use testing::{Client, Scripted, secs, tools};

/// A kernel without io_uring, or one that refuses it.
const WITHOUT: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
__attribute__((constructor)) static void begin(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 425, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ERROR),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}
"#;

#[test]
fn where_io_uring_is_refused_one_warning_says_what_to_do_and_epoll_serves() {
    for (error, why) in [
        ("EPERM", "it is forbidden here: set kernel.io_uring_disabled to 0"),
        ("ENOSYS", "this kernel has no io_uring, or a container hides it: Linux 6.0 or newer is needed"),
    ] {
        let backend = Scripted::start(|talk| {
            let got = talk.client.read_exactly(3);
            talk.send(got);
        });
        let setup = Setup::new(&format!(
            "[process]\nworkers = 2\nengine = \"io-uring\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
             [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\n",
            backend.address
        ));
        let without = tools::library(setup.dir(), "without", &WITHOUT.replace("ERROR)", &format!("{error})")));
        let server = setup.env("LD_PRELOAD", without.to_str().unwrap()).start();
        let told = server.stderr.wait_for("io_uring cannot be used", secs(10));
        assert!(told.contains(why) && told.contains("served by epoll"), "{told}");
        assert_eq!(server.stderr.count("io_uring"), 1, "{:#?}", server.stderr.tail(20));
        let engine = &server.ctl_json(&["status"])["engine"];
        assert_eq!(engine["in_use"], "epoll", "{engine}");
        assert!(engine["reason"].as_str().unwrap().contains(why), "{engine}");
        assert!(server.said(&["status"]).contains("engine: epoll, not io-uring: "));
        let mut client = Client::connect(&server.address("raw"));
        client.send("abc");
        assert_eq!(client.read_exactly(3), b"abc");
    }
}
