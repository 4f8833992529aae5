-- What a relay relies on, in one look: the agreed shards, the identity's cache, where writes can go, who may
-- see every row, and the history's identity as in lease_renew.
select s.shards, s.algorithm,
       (select q.seqcache from pg_catalog.pg_sequence as q
        where q.seqrelid = '{schema_text}.event_seq'::regclass),
       current_setting('transaction_read_only') = 'on',
       row_security_active('{schema_text}.event'::regclass),
       current_setting('server_encoding'),
       (select t.tgenabled <> 'D' from pg_catalog.pg_trigger as t
        where t.tgrelid = '{schema_text}.event'::regclass and t.tgname = 'wake'),
       (select p.relpersistence = 'u' from pg_catalog.pg_class as p
        where p.oid = '{schema_text}.event'::regclass)
from {schema}.settings as s
