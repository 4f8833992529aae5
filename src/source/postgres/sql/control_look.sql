-- Tells the owners which rows re-entered behind their cursor.
insert into {schema}.control (command, payload, created_by)
values ('look', jsonb_build_object('seqs', $1::bigint[]), $2)
