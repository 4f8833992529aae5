-- What an operator's role needs beside a viewer's. One statement a command: a new command adds its own.
-- discarded requeue: the events leave one table for the other, whole, owners are told, and what is overtaken is looked
-- up in the history.
grant insert on {schema}.event to {role};
grant insert, delete on {schema}.delivery to {role};
grant delete on {schema}.discarded to {role};
grant insert on {schema}.control to {role};
grant select (published_at, seq, sink, ordering_key) on {schema}.published to {role};
-- discarded drop.
grant delete on {schema}.discarded to {role};
-- keys skip, keys resume: events are locked, which takes an update right that changes nothing, since no number of an
-- event can be changed.
grant update (seq) on {schema}.event to {role};
grant insert, update on {schema}.delivery to {role};
-- pause, resume.
grant insert, delete on {schema}.pause to {role};
-- Every one of them leaves a trace.
grant insert on {schema}.audit to {role};
