-- Tells the owners which rows re-entered behind their cursor ($3 is look), or need no longer wait (hurry).
insert into {schema}.control (command, payload, created_by)
values ($3, jsonb_build_object('seqs', $1::bigint[]), $2)
