//! Passwords that change while the service runs.

use std::time::Duration;

use crate::cli_bin::Workplace;
use crate::cli_run::{get, ready, url_of};
use crate::support::{eventually, nats, postgres};

const SOON: Duration = Duration::from_secs(40);

fn users(password: &str) -> String {
    format!(
        "authorization {{ users: [ {{ user: relay, password: \"{password}\" }}, {{ user: probe, password: p }} ] }}"
    )
}

/// Messages in the stream, by a login of its own.
async fn stored(broker: &nats::Server) -> u64 {
    let connect = async_nats::ConnectOptions::with_user_and_password("probe".into(), "p".into());
    let Ok(client) = connect.connect(broker.url()).await else {
        return 0;
    };
    let context = async_nats::jetstream::new(client);
    match context.get_stream("EVENTS").await {
        Ok(stream) => stream.cached_info().state.messages,
        Err(_) => 0,
    }
}

async fn arrived(broker: &nats::Server, count: u64) {
    eventually(SOON, "the events are in the stream", || async {
        match stored(broker).await {
            found if found == count => Ok(()),
            found => Err(found.to_string()),
        }
    })
    .await;
}

#[tokio::test]
async fn passwords_that_change_are_read_again_at_the_next_connect() {
    let database = postgres::server().await.database().await;
    let mut broker = nats::Server::start_with(&users("n-one")).await;
    let role = format!("rotated_{}", database.name);
    let sql = format!("create role {role} superuser login password 'd-one'");
    database.execute_as_superuser(&sql).await;
    let port = database.url.rsplit([':', '/']).nth(1).unwrap();
    let place = Workplace::new(&format!(
        "[databases.orders]\nhost = \"127.0.0.1\"\nport = {port}\nuser = \"{role}\"\npassword_file = \"d\"\n\
         dbname = \"{}\"\n[sinks.events]\ntype = \"nats\"\nurl = \"{}\"\nuser = \"relay\"\npassword_file = \"n\"\n\
         stream = \"EVENTS\"\ncreate_stream = true\n[routes.all]\nkinds = [\"*\"]\nsinks = [\"events\"]\n\
         [http]\nlisten = \"127.0.0.1:0\"\n",
        database.name,
        broker.url()
    ));
    let write = |file: &str, text: &str| std::fs::write(place.path(file), text).unwrap();
    write("d", "d-one\n");
    write("n", "n-one\n");
    place.outboxd(&["migrate"]).code(0);
    let mut service = place.start(&["run"]);
    let url = url_of(&mut service).await;
    ready(&url).await;
    let insert = "insert into outbox.event (kind, payload) values ('a.b', '1')";
    database.execute_as_superuser(insert).await;
    arrived(&broker, 1).await;

    // The old sessions end, as they do when a server is failed over, and only the new password is good.
    let alter = format!("alter role {role} password 'd-two'");
    database.execute_as_superuser(&alter).await;
    let cut =
        format!("select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'");
    broker.set_snippet(&users("n-two"));
    broker.restart().await;
    eventually(SOON, "both refuse the old password", || async {
        // Again: a session that was just being opened is cut the next time.
        database.execute_as_superuser(&cut).await;
        let answer = get(&url, "/readyz").await?;
        let both = answer.contains("password authentication failed")
            && answer.contains("refused the credentials");
        if both { Ok(()) } else { Err(answer) }
    })
    .await;
    write("d", "d-two\n");
    write("n", "n-two\n");
    ready(&url).await;
    database.execute_as_superuser(insert).await;
    arrived(&broker, 2).await;
    let output = service.output();
    for secret in ["d-one", "d-two", "n-one", "n-two"] {
        assert!(!output.contains(secret), "{secret} in {output}");
    }
}
