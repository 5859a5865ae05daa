//! `http2` of listeners and pools as a word and as a table.

use config::types::Protocol;

use super::good;

#[test]
fn on_means_what_an_empty_table_means_for_listeners_and_pools() {
    let settings = |http2: &str| {
        let text = format!(
            "[listener.web]\nbind = \":0\"\npool = \"app\"\nhttp2 = {http2}\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\nhttp2 = {http2}\n"
        );
        let config = good(&text, &[]).config;
        let Protocol::Http(listener) = &config.listeners[0].protocol else { panic!("an http listener") };
        (listener.http2, config.pools[0].http2)
    };
    assert_eq!(settings("\"on\""), settings("{}"));
}
