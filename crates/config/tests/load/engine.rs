//! `engine` of the process, and the listeners that io_uring serves.

use config::types::Engine;
use logic::rings::WantedRings;

use super::{bad, good};

fn why_not(listener: &str, pool: &str) -> Option<&'static str> {
    let text = format!(
        "[process]\nengine = \"io-uring\"\n[listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"127.0.0.1:1\"]\n{pool}\n"
    );
    let loaded = good(&text, &[]);
    assert_eq!(loaded.config.process.engine, Engine::IoUring);
    loaded.config.why_not_in_ring(&loaded.config.listeners[0])
}

#[test]
fn plain_tcp_listeners_begin_in_a_ring_and_each_other_has_a_reason() {
    let sorry = "fallback = \"sorry\"\n[pool.sorry]\nbackends = [\"127.0.0.1:2\"]\n";
    for pool in ["balance = \"least-connections\"", "retries = 3\nqueue = 9", sorry] {
        let listener = "max-connections = 9\nidle-timeout = \"1m\"\nfast-close = \"up\"";
        assert_eq!(why_not(listener, pool), None, "{pool}");
    }
    for (listener, pool, why) in [
        ("proxy-protocol-from = [\"10.0.0.0/8\"]", "", "proxy-protocol-from"),
        ("bandwidth = { up = \"1MiB/s\" }", "", "bandwidth"),
        ("", "send-proxy = \"v2\"", "send-proxy of its pool"),
        ("", &format!("{sorry}send-proxy = \"v1\""), "send-proxy of its pool"),
        ("", "source-address = \"client\"", "source-address of its pool"),
    ] {
        assert_eq!(why_not(listener, pool), Some(why), "{listener} {pool}");
    }
    let http = good(
        "[listener.web]\nbind = \":0\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n",
        &[],
    );
    assert_eq!(http.config.process.engine, Engine::Auto, "the default");
    assert_eq!(http.config.why_not_in_ring(&http.config.listeners[0]), Some("its protocol is not tcp"));
    for engine in ["auto", "epoll", "io-uring"] {
        let wanted = |listener: &str| {
            let text = format!(
                "[process]\nengine = \"{engine}\"\n[listener.raw]\nbind = \"127.0.0.1:0\"\n{listener}\npool = \"app\"\n\
                 [pool.app]\nbackends = [\"127.0.0.1:1\"]\n"
            );
            good(&text, &[]).config.wanted_rings()
        };
        let of_any = if engine == "io-uring" { WantedRings::Asked } else { WantedRings::None };
        assert_eq!(wanted(""), of_any, "{engine}");
        assert_eq!(wanted("protocol = \"tcp\"\nbandwidth = { up = \"1MiB/s\" }"), of_any, "{engine}");
        let of_tcp = if engine == "auto" { WantedRings::IfAllowed } else { of_any };
        assert_eq!(wanted("protocol = \"tcp\""), of_tcp, "{engine}");
    }
    let wrong = bad("[process]\nengine = \"uring\"\n", &[]).render();
    assert!(wrong.contains("\"epoll\", \"io-uring\"") || wrong.contains("io-uring"), "{wrong}");
}
