"""What the transports promise, and the test that holds each promise; what went wrong elsewhere, and the tests of it.

`test_manifest` fails when a promise has no test, or a test in one of the files of PROMISES no promise.
"""

from __future__ import annotations

PROMISES: dict[str, dict[str, str]] = {
    "test_transport": {
        "the announced path contains the bank and answers 202": (
            "test_the_first_event_announces_a_path_with_the_bank_that_takes_messages"
        ),
        "ids with spaces, @, capitals, Unicode or one character work": (
            "test_every_allowed_bank_id_gets_a_path_that_reaches_it"
        ),
        "the announced path is a path only, with X-Forwarded-Prefix, never an internal host": (
            "test_behind_a_proxy_that_strips_a_prefix_the_announced_path_has_it_and_no_host"
        ),
        "a forwarded prefix can not announce another server": (
            "test_a_forwarded_prefix_that_is_no_plain_path_is_ignored"
        ),
        "a proxy prefix works, stripped or not, told by --root-path, by the settings or by the proxy": (
            "test_a_proxy_prefix_works_stripped_or_not"
        ),
        "mounted under a prefix, the announced path contains the mount": (
            "test_mounted_in_another_app_the_announced_path_has_the_mount"
        ),
        "trailing slashes are served without a redirect": "test_a_trailing_slash_needs_no_redirect",
        "HEAD on a stream answers and opens no session": "test_head_answers_like_the_stream_but_opens_nothing",
        "first bytes at once, then a ping comment every interval": (
            "test_a_quiet_stream_carries_a_comment_every_ping_interval"
        ),
        "no proxy may cache or buffer the stream": "test_no_proxy_may_cache_or_hold_back_the_stream",
        "an unknown, foreign or ended session is 404 at once, with the same body": (
            "test_unknown_foreign_and_ended_sessions_are_all_the_same_404"
        ),
        "after a restart the old session is 404 with a body that says so, and a new one just works": (
            "test_after_a_restart_the_old_session_is_404_at_once_and_a_new_one_needs_no_initialize"
        ),
        "a call before initialize is answered, and initialize afterwards works": (
            "test_a_session_serves_calls_before_and_after_initialize"
        ),
        "both protocol eras are served on one stream": (
            "test_requests_of_both_protocol_eras_are_answered_on_one_stream"
        ),
        "the Python SDK's session speaks to it over both doors": "test_the_python_session_client_works_over_both_doors",
        "answers fit the tools' output schemas": (
            "test_an_answer_that_breaks_its_output_schema_fails_in_the_python_client"
        ),
        "the Python SDK's client speaks to it in both modes over both doors": (
            "test_the_python_client_works_in_every_mode_over_both_doors"
        ),
        "idle sessions are dropped": "test_an_idle_session_ends",
        "sessions are capped with 503 and Retry-After, and their places are given back": (
            "test_one_session_too_many_is_503_until_another_ends"
        ),
        "revoking a key ends its sessions": "test_revoking_a_key_ends_its_sessions_and_no_others",
        "every tool has a title, schemas and hints": "test_the_tools_are_listed_with_titles_schemas_and_hints",
        "?tools= narrows a session's tools": "test_the_url_narrows_the_tools_of_a_session",
        "?tools= with an unknown name is a 400 that lists the known ones": (
            "test_narrowing_to_a_tool_that_is_not_known_is_a_400_that_names_the_known_ones"
        ),
        "an unknown tool is an error result that lists the known ones": (
            "test_an_unknown_tool_is_an_error_result_that_names_the_known_ones"
        ),
        "a read key does not see write tools, and calling one is FORBIDDEN": (
            "test_who_may_only_read_neither_sees_nor_calls_what_writes"
        ),
        "nothing internal reaches a client": "test_a_bug_is_told_to_the_log_and_not_to_the_client",
        "the log has a line per session and per failed call, never content": (
            "test_the_log_has_a_line_per_session_and_failed_call_and_no_content"
        ),
        "calls in flight in a session are capped with TOO_BUSY": (
            "test_a_call_too_many_in_a_session_fails_at_once_and_the_others_go_on"
        ),
        "calls in flight in all are capped with TOO_BUSY": "test_a_call_too_many_in_all_fails_at_once_over_both_doors",
        "a call ends at its deadline": "test_a_call_that_takes_too_long_fails_and_the_session_goes_on",
        "a deadline never half-does a write": "test_a_write_that_takes_too_long_fails_but_is_not_left_half_done",
        "cancellation is honoured": "test_a_cancelled_call_stops_and_is_never_answered",
        "a cancellation never half-does a write": "test_a_cancelled_write_is_written_and_never_answered",
        "a cancellation of nothing does nothing": "test_cancelling_what_is_over_or_never_was_does_nothing",
        "a disconnect ends the reading and costs the others nothing": (
            "test_a_client_that_leaves_stops_its_reads_and_costs_the_others_nothing"
        ),
        "a disconnect never undoes or half-does a write": (
            "test_a_client_that_leaves_does_not_undo_or_halve_its_write"
        ),
        "progress is told to who asks for it": "test_who_asks_for_progress_hears_that_a_long_call_still_runs",
        "an id in flight can not be used twice": "test_a_second_call_under_an_id_in_flight_is_refused",
        "a message over the limit is answered on the stream, wherever its id stands": (
            "test_an_oversized_call_fails_at_once_and_the_session_goes_on"
        ),
        "a message over the limit does not leave the Python client waiting": (
            "test_an_oversized_call_of_the_python_client_fails_at_once"
        ),
        "a message over the limit that has no id is 413": (
            "test_an_oversized_message_without_a_recognisable_id_is_413"
        ),
        "what is not a message is 400, a batch too": "test_what_is_no_message_is_400_and_the_session_goes_on",
        "a body that is not JSON by its type is 415": "test_a_body_that_does_not_say_it_is_json_is_415",
        "a request that can't be served fails on the stream": (
            "test_a_request_that_can_not_be_served_is_answered_on_the_stream"
        ),
        "a stray response does no harm": "test_a_response_to_nothing_is_taken_and_dropped",
        "ids come back as they were": "test_an_id_of_any_size_comes_back_exactly",
        "every line end in a text survives the stream": (
            "test_text_with_foreign_line_ends_survives_clients_that_split_on_them"
        ),
        "a send timeout ends the session of a client that does not read": (
            "test_a_client_that_does_not_read_is_cut_off_and_refused_meanwhile"
        ),
        "draining finishes calls, ends streams and opens none": (
            "test_draining_lets_calls_finish_then_ends_streams_cleanly_and_opens_no_new_ones"
        ),
        "SIGTERM exits 0 within seconds with streams open": (
            "test_a_signal_ends_the_server_within_its_time_with_streams_open"
        ),
        "hindsight serve exits 0 on SIGTERM with a stream open": (
            "test_a_signal_ends_hindsight_serve_with_0_while_a_stream_is_open"
        ),
    },
    "test_streamable": {
        "a handshake and calls need no session": "test_a_handshake_and_a_call_need_no_session",
        "a made-up session is 404, and a new initialize works on the same URL": (
            "test_a_made_up_session_is_404_and_a_new_initialize_works_on_the_same_url"
        ),
        "an unknown protocol version is 400": "test_a_protocol_version_that_we_do_not_speak_is_400",
        "GET and DELETE are answered as the transport asks of a server without streams and sessions": (
            "test_there_is_no_stream_to_get_and_no_session_to_delete"
        ),
        "the 2026-07-28 era is served": "test_an_enveloped_call_is_answered_with_a_complete_result",
        "discovery and cache hints are served": "test_a_client_discovers_the_server_and_may_cache_its_tools",
        "headers must agree with the envelope": "test_headers_that_contradict_the_envelope_are_400",
        "a doubled routing header is refused": "test_a_routing_header_given_twice_is_400",
        "an unknown method is 404 in the new era": "test_an_enveloped_request_for_an_unknown_method_is_404",
        "the new era has no initialize": "test_the_new_era_has_no_initialize",
        "the new version needs the envelope": "test_an_unenveloped_request_under_the_new_version_is_400",
        "Accept is respected": "test_an_answer_in_another_form_than_json_can_not_be_had",
        "a body of another type is 415": "test_a_body_of_another_type_than_json_is_415",
        "a body that is no message is 400": "test_a_body_that_is_no_message_is_400_with_json_rpc_s_code",
        "a body over the limit is 413": "test_a_body_over_the_limit_is_413_under_its_own_id",
        "?tools= narrows here too": "test_the_url_narrows_the_tools",
        "a read key can't write here either": "test_who_may_only_read_can_not_write",
        "a disconnect cancels a call": "test_a_client_that_leaves_mid_call_stops_it",
        "a disconnect never half-does a write": "test_a_client_that_leaves_mid_write_does_not_halve_it",
        "errors reach the Python SDK's client as results": "test_the_python_client_finds_out_what_went_wrong",
    },
    "test_arguments": {
        '"10", 10 and 10.0 are 10': "test_a_number_in_another_form_counts",
        "what is no number or out of range is an error with field and range, never a clamp": (
            "test_what_is_no_number_in_range_is_refused_naming_field_and_range"
        ),
        "an unknown argument is ignored with a warning": (
            "test_an_unknown_argument_is_ignored_with_a_warning_that_names_the_nearest"
        ),
        "text where a list is expected is parsed": "test_a_list_in_another_form_counts",
        "all valid Unicode round-trips": "test_all_valid_text_round_trips",
        "a lone surrogate is a clean error": "test_a_lone_surrogate_is_refused_by_name",
        "blank content is refused": "test_text_of_white_space_is_refused",
        "a missing argument is an error that names it": "test_a_missing_argument_is_refused_by_name",
        "a failure is isError with a code, as text and structure": (
            "test_a_failure_is_marked_as_one_and_has_a_code_and_advice"
        ),
        "retain's text is a sentence": "test_a_tool_with_a_sentence_says_it_as_text_and_the_rest_as_structure",
    },
    "test_paths": {
        "a refused bank id is 400 with the rule, and nothing is made": (
            "test_a_bank_id_against_the_rule_is_400_with_the_rule_at_every_door"
        ),
        "an unknown URL is 404 with an error body": "test_an_unknown_url_is_404_with_an_error_body",
        "a wrong method is 405 with Allow": "test_a_wrong_method_is_405_and_options_tell_the_right_ones",
        "loopback names work on loopback": "test_on_loopback_its_names_are_known",
        "another Host is 421 on loopback": "test_on_loopback_another_host_name_is_421",
        "every Host works in a container": "test_off_loopback_every_host_name_works",
        "an allow-list of hosts is kept": "test_where_hosts_are_listed_only_those_work",
        "an unknown Origin is 403": "test_a_page_of_an_unknown_origin_is_refused",
        "a page of this machine is let in on loopback": "test_on_loopback_a_page_of_this_machine_is_let_in",
        "browsers of allowed origins get CORS": "test_a_browser_of_an_allowed_origin_may_send_and_read_what_mcp_needs",
        "healthz and readyz say what they should": "test_alive_is_always_and_ready_names_what_is_not",
        "a prober needs no known Host": "test_a_prober_may_ask_under_any_host_name",
        "a cut body costs nothing": "test_a_request_cut_off_in_its_body_costs_nothing",
        "a body that stops half-way is 408": "test_a_body_that_stops_half_way_is_408_and_the_session_goes_on",
        "spaces around a header's value do not count": "test_spaces_around_the_value_of_a_header_do_not_count",
    },
    "test_interop": {
        "published clients speak to it over both doors": "test_a_published_client_retains_and_recalls",
        "the MCP Inspector speaks to it over both doors": "test_the_inspector_lists_the_tools_and_calls_them",
        "a TypeScript client goes on after a kill of the server, without initialize": (
            "test_a_typescript_client_lives_through_a_kill_of_the_server"
        ),
        "the public conformance suite passes in both eras": (
            "test_the_conformance_suite_finds_nothing_wrong_but_what_only_its_example_server_has"
        ),
        "no client makes the server log an error": "test_no_client_made_the_server_log_more_than_a_warning",
    },
}

REPORTED: dict[str, tuple[str, ...]] = {
    # Transport and sessions
    "mounted under a prefix, the announced path lacks it and the client's POST is 404": (
        "protocol/test_transport::test_mounted_in_another_app_the_announced_path_has_the_mount",
    ),
    "behind a proxy, an internal host or a path without the proxy's prefix is announced": (
        "protocol/test_transport::test_behind_a_proxy_that_strips_a_prefix_the_announced_path_has_it_and_no_host",
        "protocol/test_transport::test_a_proxy_prefix_works_stripped_or_not",
        "protocol/test_proxies::test_each_team_has_its_path_and_no_other_team_s_key_works_there",
    ),
    "after a restart a client posts to its old session for ever": (
        "protocol/test_transport::test_after_a_restart_the_old_session_is_404_at_once_and_a_new_one_needs_no_initialize",
    ),
    "an unknown session is 503 or 500, so the client never initialises again": (
        "protocol/test_streamable::test_a_made_up_session_is_404_and_a_new_initialize_works_on_the_same_url",
        "protocol/test_transport::test_unknown_foreign_and_ended_sessions_are_all_the_same_404",
    ),
    "a client that reconnects and calls without initialize is refused": (
        "protocol/test_transport::test_a_session_serves_calls_before_and_after_initialize",
        "protocol/test_interop::test_a_typescript_client_lives_through_a_kill_of_the_server",
    ),
    "every Host but localhost is 421 in a container": (
        "protocol/test_paths::test_off_loopback_every_host_name_works",
        "protocol/test_paths::test_where_hosts_are_listed_only_those_work",
    ),
    "SIGTERM hangs while a stream is open": (
        "protocol/test_transport::test_a_signal_ends_the_server_within_its_time_with_streams_open",
        "protocol/test_transport::test_a_signal_ends_hindsight_serve_with_0_while_a_stream_is_open",
    ),
    "a proxy cuts an idle stream, or holds its headers back until a first byte": (
        "protocol/test_transport::test_a_quiet_stream_carries_a_comment_every_ping_interval",
        "protocol/test_transport::test_no_proxy_may_cache_or_hold_back_the_stream",
        "protocol/test_proxies::test_a_stream_that_is_idle_longer_than_the_proxy_waits_stays_open",
    ),
    "any bearer opens a session, and sessions that nobody uses fill the server": (
        "protocol/test_security::test_without_a_good_key_every_url_is_the_same_401",
        "protocol/test_transport::test_an_idle_session_ends",
        "protocol/test_transport::test_one_session_too_many_is_503_until_another_ends",
    ),
    "a POST with only a session id needs no key, or another bank's will do": (
        "protocol/test_security::test_without_a_good_key_every_url_is_the_same_401",
        "protocol/test_security::test_a_session_of_another_key_is_404_as_one_that_never_was",
        "protocol/test_security::test_another_team_s_key_is_403_at_every_door_of_a_bank",
    ),
    "the model loads before initialize is answered, and the client gives up": (
        "protocol/test_memory::test_a_session_opens_before_the_model_is_loaded_and_the_first_retain_waits_for_it",
        "protocol/test_paths::test_alive_is_always_and_ready_names_what_is_not",
    ),
    "the model is fetched at the first call, which fails without a network": (
        "unit/test_dockerfile::test_the_image_serves_with_the_model_inside",
        "unit/test_dockerfile::test_the_image_neither_reports_home_nor_lets_anyone_in",
    ),
    # Arguments
    'a model sends "10" for an integer and is refused': (
        "protocol/test_arguments::test_a_number_in_another_form_counts",
        "protocol/test_memory::test_every_way_to_write_ten_is_ten",
        "protocol/test_arguments::test_what_is_no_number_in_range_is_refused_naming_field_and_range",
    ),
    "a limit of 0 gives one, -1 everything, and 500 is clamped without a word": (
        "protocol/test_memory::test_what_is_no_number_in_range_is_refused_with_field_value_and_range",
        "protocol/test_record::test_a_limit_out_of_range_is_an_error_with_the_range",
    ),
    "an update with a field that can not be changed says success": (
        "protocol/test_record::test_an_update_never_changes_the_text_and_says_so",
    ),
    "an unknown id is an error text without isError": (
        "protocol/test_record::test_an_id_of_no_memory_is_an_error_with_a_code",
    ),
    "reading with a mistyped bank id makes the bank": (
        "protocol/test_memory::test_an_unknown_bank_reads_empty_and_leaves_no_folder",
        "protocol/test_record::test_reading_and_changing_in_an_unknown_bank_finds_nothing_and_makes_nothing",
    ),
    "content of blanks is stored": (
        "protocol/test_arguments::test_text_of_white_space_is_refused",
        "protocol/test_memory::test_a_wrong_argument_is_refused_by_name_and_rule",
    ),
    "a search dies of an apostrophe, a slash, a dash, a colon or a star": (
        "protocol/test_memory::test_literal_words_are_found_as_they_are_written",
    ),
    "CJK, emoji or half a surrogate pair break the call": (
        "protocol/test_memory::test_text_comes_back_byte_for_byte",
        "protocol/test_memory::test_half_a_surrogate_pair_is_refused",
    ),
    "bank ids with spaces, capitals or other scripts fail, or two of them collide": (
        "protocol/test_transport::test_every_allowed_bank_id_gets_a_path_that_reaches_it",
        "protocol/test_memory::test_banks_never_share_a_memory_however_alike_their_ids",
        "protocol/test_paths::test_a_bank_id_against_the_rule_is_400_with_the_rule_at_every_door",
    ),
    "../ in a bank id leaves the data folder": (
        "protocol/test_paths::test_a_bank_id_against_the_rule_is_400_with_the_rule_at_every_door",
        "protocol/test_memory::test_the_server_writes_nothing_outside_its_data_folder",
    ),
}
