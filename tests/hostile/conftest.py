"""The lab that is attacked here is a root of its own: its checks are asked by the judge, not collected."""

collect_ignore = ["labs", "solutions", "tests", "submissions", "honest"]
